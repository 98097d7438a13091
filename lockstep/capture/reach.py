"""The code and the Python values that a step can reach, found without running it.

The walk follows names: from the step to the functions, classes and values that it mentions, and on
from those. Of a class of an argument the methods whose names are mentioned are reached, so that a
trainer's other loops do not count. Libraries are not walked; they are named, for their versions.
"""

from __future__ import annotations

import torch

from lockstep import _compat
from lockstep.capture.binding import CODE, Call, Step
from lockstep.capture.parts import attributes_of
from lockstep.capture.reached import Cell, Reach, defaults_of
from lockstep.capture.sinks import told_names
from lockstep.capture.state import State
from lockstep.capture.walk import Walk

__all__ = ["Cell", "Reach", "defaults_of", "reach"]


def reach(step: Step, call: Call, state: State) -> Reach:
    """Walk from a step and everything in its call."""
    walk, told = Walk(), told_names(step.plain)
    walk.found.own.update(id(module) for _, module in state.modules)
    walk.inside(step.name, step.function)
    walk.mention(["forward"])
    for table in _compat.global_module_hooks():
        for hook in table.values():
            walk.value("every module:hook", "hook", hook, None)
    for name, module in state.modules:
        walk.add(name, "", type(module))
        walk.owner(name, module)
        for key, value in attributes_of(module).items():  # `forward` itself may be one of them
            if isinstance(value, CODE):
                walk.inside(f"{name}.{key}", value)
        for hook in [hook for table in _compat.hook_tables(module) for hook in table.values()]:
            walk.inside(f"{name}:hook", hook)
    for slot in state.parameters:
        for hook in _compat.all_tensor_hooks(slot.tensor):
            walk.inside(f"{slot.name}:hook", hook)
        if vars(slot.tensor):
            walk.owner(slot.name, slot.tensor)
    for name, obj in call.objects.items():
        if name in told:
            walk.found.told.add(id(obj))
        else:
            walk.add(name, "", type(obj))
            walk.owner(name, obj)
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, CODE) and name not in told:
            walk.value(f"{name}:argument", "argument", leaf, None)
        elif name not in told and not isinstance(leaf, torch.Tensor):
            walk.inside(name, leaf)
    for name, optimizer in state.optimizers:
        walk.add(name, "optimizer", type(optimizer))
        walk.owner(name, optimizer)
    return walk.run()
