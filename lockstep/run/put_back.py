"""Everything that a call of a step may change, kept before it and put back after.

What is kept costs the host's memory, whatever the device: a copy of every tensor that the call can
reach (parameters, buffers, gradients, the state of optimizers, the arguments), while it is held.
"""

from __future__ import annotations

from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import Call, Step
from lockstep.capture.layout import local_of
from lockstep.capture.pystate import PythonState
from lockstep.capture.state import State, tensor_holders
from lockstep.run.bits import digest


class Kept:
    """A call's world as it is now.

    Args:
        step, call, state: of the call, as it was taken apart.
    """

    def __init__(self, step: Step, call: Call, state: State) -> None:
        self._step, self._call, self._state = step, call, state
        self._tensors: dict[int, _Tensor] = {}
        held = [slot.tensor for slot in state.slots]
        for tensor in (*held, *(x for x in call.leaves if isinstance(x, torch.Tensor))):
            self._keep(tensor)
        self._places = [(h.mapping, h.key, h.get()) for h in tensor_holders(state, call)]
        self._optimizers = [_Optimizer(optimizer) for _, optimizer in state.optimizers]
        self._streams = streams()
        self._python = PythonState(step, call, state)

    def put_back(self) -> None:
        """Make everything as it was; the same tensors hold the same bits. Can be done again."""
        for optimizer in self._optimizers:
            optimizer.put_back()
        known = {(id(mapping), key) for mapping, key, _ in self._places}
        for holder in list(tensor_holders(self._state, self._call)):
            if (id(holder.mapping), holder.key) not in known:
                del holder.mapping[holder.key]
        for mapping, key, tensor in self._places:
            if mapping.get(key) is not tensor:
                mapping[key] = tensor
        self._python.undo()
        for kept in self._tensors.values():
            kept.put_back()
        set_streams(self._streams)

    def _keep(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._tensors:
            self._tensors[id(tensor)] = kept = _Tensor(tensor)
            if kept.grad is not None:
                self._keep(kept.grad)


class _Tensor:
    """One tensor's values, and which gradient it has."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._copy = local_of(tensor).detach().to("cpu", copy=True)  # an accelerator has no spare
        self._digest = digest(tensor)
        self.grad = tensor.grad if tensor.is_leaf else None

    def put_back(self) -> None:
        if self._tensor.is_leaf and self._tensor.grad is not self.grad:
            self._tensor.grad = self.grad
        # Only where it has changed, and past autograd: what a graph of the user's own has kept of
        # it is still good, and an expanded tensor, which takes no writes, is left alone.
        if digest(self._tensor) != self._digest:
            local_of(self._tensor).data.copy_(self._copy)


class _Optimizer:
    """An optimizer's own entries, its groups and its state, down to what holds each tensor."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._own = optimizer, dict(optimizer.__dict__)
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._state = {p: (entry, dict(entry)) for p, entry in optimizer.state.items()}

    def put_back(self) -> None:
        optimizer = self._optimizer
        optimizer.__dict__.clear()
        optimizer.__dict__.update(self._own)
        for group, kept in zip(optimizer.param_groups, self._groups, strict=True):
            _refill(group, kept)
        for entry, kept in self._state.values():
            _refill(entry, kept)
        _refill(optimizer.state, {p: entry for p, (entry, _) in self._state.items()})


def _refill(mapping: Any, kept: dict[Any, Any]) -> None:
    if mapping.keys() != kept.keys() or any(mapping[key] is not kept[key] for key in kept):
        mapping.clear()
        mapping.update(kept)


def streams() -> dict[str, torch.Tensor]:
    """The states of torch's generators, of the CPU and of this rank's accelerator."""
    found = {"cpu": torch.get_rng_state()}
    device = _compat.current_accelerator()
    if device is not None:
        found[device.type] = torch.get_device_module(device.type).get_rng_state()
    return found


def set_streams(states: dict[str, torch.Tensor]) -> None:
    """Put torch's generators back to states that `streams` gave."""
    for kind, state in states.items():
        (torch if kind == "cpu" else torch.get_device_module(kind)).set_rng_state(state)
