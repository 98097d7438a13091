"""Stand-ins: while a step is traced, its state is fake; afterwards everything is as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat_dtensor import dtensor_around
from lockstep.capture.caches import forget_stand_ins
from lockstep.capture.layout import is_dtensor, local_of
from lockstep.capture.optimizers import swapped_optimizer
from lockstep.capture.origin import user_line
from lockstep.capture.state import Slot, State
from lockstep.capture.wrapped.kinds import wrapping
from lockstep.errors import CaptureError


def stand_ins(
    stand_in: Callable[[torch.Tensor], torch.Tensor], slots: list[Slot]
) -> dict[int, torch.Tensor]:
    """A stand-in for each slot's tensor, by the real one's id, with its attributes and hooks."""
    fakes: dict[int, torch.Tensor] = {}
    for slot in slots:
        fake = like(slot.tensor, stand_in(local_of(slot.tensor)))
        if slot.kind == "param":
            _refuse_hooks(slot)
        dress(fake, slot.tensor)
        fakes[id(slot.tensor)] = fake
    return fakes


def like(real: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """The stand-in of a tensor around that of its local one: a DTensor where it is one."""
    if not is_dtensor(real):
        return local
    kinds = real.device_mesh, real.placements, real.shape, real.stride()  # type: ignore[attr-defined]
    return dtensor_around(local, *kinds, like=real)


def dress(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Give a stand-in what code may test of a tensor, and its hooks; it has no gradient yet."""
    fake.grad = None
    own = {k: v for k, v in vars(real).items() if not isinstance(v, torch.Tensor)}
    fake.__dict__.update({k: v for k, v in own.items() if k not in fake.__dict__})
    before, after = _compat.tensor_hooks(real)
    for hook in before:
        fake.register_hook(hook)
    for hook in after:
        fake.register_post_accumulate_grad_hook(hook)


def _refuse_hooks(slot: Slot) -> None:
    hooks = _compat.hooks_where_it_accumulates(slot.tensor)
    if hooks:
        raise CaptureError(
            f"{slot.name} has a hook on the node that accumulates its gradient",
            where=user_line() or None,
            got=getattr(hooks[0], "__qualname__", type(hooks[0]).__qualname__),
            why="the node belongs to the real parameter, which no capture sees: it would be lost",
            fix="parameter.register_hook(...) or register_post_accumulate_grad_hook(...)",
        )


@contextlib.contextmanager
def standing_in(
    state: State, fakes: dict[int, torch.Tensor], scalars: dict[str, Any]
) -> Iterator[Callable[[], None]]:
    """Put the stand-ins into every holder while inside, and put the real ones back.

    Args:
        fakes: id of a real tensor -> its stand-in.
        scalars: name of an optimizer's float -> its symbolic value.

    Yields:
        What is to be called once the step has returned.
    """
    with contextlib.ExitStack() as stack:
        for slot in state.slots:
            for holder in slot.holders if slot.kind != "state" else ():
                stack.callback(holder.mapping.__setitem__, holder.key, slot.tensor)
                holder.mapping[holder.key] = fakes[id(slot.tensor)]
        for name, optimizer in state.optimizers:
            stack.enter_context(swapped_optimizer(optimizer, fakes, scalars, name))
        state.switched = {}
        stack.callback(forget_stand_ins)
        yield stack.enter_context(wrapping(state.wrappers, fakes, state.names, state.switched))
