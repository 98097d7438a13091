"""What a call of a step has done, by name: gradients, state, arguments, outputs.

As digests, so that two runs are compared while only one of them is in memory; as values, where
these differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from lockstep._compat import pytree
from lockstep.capture.binding import Call
from lockstep.capture.indexing import plain
from lockstep.capture.state import State, tensor_holders
from lockstep.run.bits import digest
from lockstep.run.put_back import streams

GRADIENT = ".grad"
Outcome = dict[str, str]
Values = dict[str, torch.Tensor]


def outcome(result: Any, call: Call, state: State) -> Outcome:
    """What is there after a call, in the order of the model: name -> digest of its bits.

    Args:
        result: what the call returned.
    """
    return {name: _told(value) for name, value in _left(result, call, state)}


def values(result: Any, call: Call, state: State) -> Values:
    """The tensors among it, copied to the host."""
    found = dict(_left(result, call, state))
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    return {
        name: tensor.detach().to("cpu", copy=True)
        for name, tensor in tensors.items()
        if tensor.layout is torch.strided
    }


def differing(one: Outcome, other: Outcome) -> list[str]:
    """The names under which two outcomes differ, gradients first, in the order of the model."""
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    return sorted(names, key=lambda name: not name.endswith(GRADIENT))


def _left(result: Any, call: Call, state: State) -> Iterator[tuple[str, Any]]:
    """Each value by its name; where a name comes twice, the last one counts."""
    for slot in state.parameters:
        yield f"{slot.name}{GRADIENT}", slot.tensor.grad
    for i, leaf in enumerate(pytree.tree_leaves(plain(result))):
        yield f"output {i}", leaf
    for holder in tensor_holders(state, call):
        yield holder.name, holder.get()
    for slot in state.slots:
        if slot.kind == "state":
            yield slot.name, slot.holders[0].get()
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            yield f"argument {name}", leaf
    for kind, stream in streams().items():
        yield f"random stream of {kind}", stream


def _told(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return digest(value) if value.layout is torch.strided else f"{value.layout}"
    return f"{type(value).__name__} {value!r}"
