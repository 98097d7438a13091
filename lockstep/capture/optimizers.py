"""The optimizer's state and its scalars, when the user's step calls it.

The state must be there before the first capture, else creating it would become part of the program.
For the optimizers admitted here a state of zeros is exactly what their first step starts from.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.state import Holder, Scalar, Slot, State
from lockstep.errors import CaptureError

# Floats that schedulers change at each step: read anew at every call. The others are baked, and are
# part of the variant's key.
_LIFTED = ("lr", "betas")
# Optimizers branch on these, as in `if momentum > 0`: read anew for as long as they are above 0.
_LIFTED_ABOVE_ZERO = ("momentum", "weight_decay")
_ZERO_START = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)


def add_optimizer(
    state: State, known: dict[int, Slot], name: str, optimizer: torch.optim.Optimizer
) -> None:
    """Add an optimizer's state tensors and scalars, making the state where it is missing.

    Raises:
        CaptureError: it holds a parameter of no reached module, is fused, or cannot start from
            zeros.
    """
    if any(known_optimizer is optimizer for _, known_optimizer in state.optimizers):
        return
    state.optimizers.append((name, optimizer))
    _refuse_foreign(known, name, optimizer)
    _refuse_fused(name, optimizer)
    _start_state(name, optimizer)
    for g, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            entry = optimizer.state.get(parameter)
            for key, value in list((entry or {}).items()):
                if isinstance(value, torch.Tensor):
                    label = f"{name}.state[{known[id(parameter)].name}].{key}"
                    state.slots.append(Slot("state", value, [Holder(label, entry, key)]))
        for key in lifted(group):
            _add_scalar(state, f"{name}.group{g}", group, key)


def lifted(group: dict[str, Any]) -> tuple[str, ...]:
    """The names of a parameter group's values that are read anew at every call.

    Example:
        >>> lifted({"lr": 0.1, "momentum": 0.9, "weight_decay": 0, "eps": 1e-8})
        ('lr', 'momentum')
    """
    found = [key for key in _LIFTED if key in group]
    return (*found, *(key for key in _LIFTED_ABOVE_ZERO if group.get(key, 0) > 0))


def _add_scalar(state: State, prefix: str, group: dict[str, Any], key: str) -> None:
    value = group.get(key)
    label = f"{prefix}.{key}"
    if isinstance(value, torch.Tensor):
        state.slots.append(Slot("state", value, [Holder(label, group, key)]))
    elif _is_number(value):
        state.scalars.append(Scalar(label, group, key, positive=key in _LIFTED_ABOVE_ZERO))
    elif isinstance(value, (tuple, list)) and all(map(_is_number, value)):
        for i in range(len(value)):
            state.scalars.append(Scalar(f"{label}[{i}]", group, key, i))


def _is_number(value: Any) -> bool:
    """Also a whole one: a schedule makes 0.5 of a rate of 1."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refuse_foreign(known: dict[int, Slot], name: str, optimizer: torch.optim.Optimizer) -> None:
    foreign = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in known]
    if foreign:
        raise CaptureError(
            f"{name} optimizes {len(foreign)} parameter(s) of no module that the step reaches",
            got=f"first: shape {list(foreign[0].shape)}",
            fix="pass the model that owns them to the step, or call the optimizer outside the step",
        )


def _refuse_fused(name: str, optimizer: torch.optim.Optimizer) -> None:
    if any(group.get("fused") for group in optimizer.param_groups):
        raise CaptureError(
            f"{name} is fused",
            got=f"{type(optimizer).__name__}(..., fused=True)",
            why="its kernel holds the learning rate as a number, which a schedule changes",
            fix=[
                "fused=False: the compiled program fuses the update by itself",
                "call it outside the compiled step",
            ],
        )


def _start_state(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Create missing state: one step with zero gradients, undone, and then zeros everywhere."""
    parameters = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad]
    fresh = [p for p in parameters if not optimizer.state.get(p)]
    if not fresh:
        return
    dampened = any(group.get("dampening", 0) != 0 for group in optimizer.param_groups)
    if type(optimizer) not in _ZERO_START or dampened:
        detail = " with dampening" if dampened else ""
        raise CaptureError(
            f"{name} is a {type(optimizer).__name__}{detail} without state",
            want="AdamW, Adam, or SGD without dampening; or an optimizer that has made a step",
            why="its first step is another program than the later ones",
            fix=["call it outside the compiled step", "take its first step eagerly"],
        )
    kept = [(p, p.detach().clone(), p.grad) for p in parameters]
    new = set(fresh)
    old = {p: dict(optimizer.state[p]) for p in parameters if p not in new}
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter in new else None
    _plain_step(optimizer)
    with torch.no_grad():
        for parameter, value, grad in kept:
            parameter.copy_(value)
            parameter.grad = grad
        for parameter in fresh:
            for value in optimizer.state[parameter].values():
                if isinstance(value, torch.Tensor):
                    value.zero_()
    optimizer.state.update(old)


def _plain_step(optimizer: torch.optim.Optimizer) -> None:
    """The class' own step: without a scheduler's counter and without hooks."""
    with _compat.without_step_hooks(optimizer):
        type(optimizer).step(optimizer)


@contextlib.contextmanager
def swapped_optimizer(
    optimizer: torch.optim.Optimizer,
    fakes: dict[int, torch.Tensor],
    scalars: dict[str, Any],
    name: str,
) -> Iterator[dict[torch.Tensor, torch.Tensor]]:
    """The optimizer with stand-ins for its parameters, its state and its scalars while inside.

    Args:
        fakes: id of a real tensor -> its stand-in.
        scalars: "optimizer.group0.lr" -> the symbolic value.

    Yields:
        Stand-in parameter -> real parameter.
    """
    groups = [dict(group) for group in optimizer.param_groups]
    state = optimizer.state
    real_of: dict[torch.Tensor, torch.Tensor] = {}
    fake_state: dict[Any, Any] = defaultdict(dict)
    for g, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            fake = fakes[id(parameter)]
            real_of[fake] = parameter
            if parameter in state:
                fake_state[fake] = {k: fakes.get(id(v), v) for k, v in state[parameter].items()}
        group["params"] = [fakes[id(p)] for p in group["params"]]
        for key in lifted(group):
            group[key] = _lifted(group[key], f"{name}.group{g}.{key}", scalars, fakes)
    optimizer.state = fake_state  # type: ignore[assignment]
    try:
        yield real_of
    finally:
        optimizer.state = state
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(saved)


def _lifted(value: Any, label: str, scalars: dict[str, Any], fakes: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return fakes.get(id(value), value)
    if isinstance(value, (tuple, list)):
        return type(value)(scalars.get(f"{label}[{i}]", v) for i, v in enumerate(value))
    return scalars.get(label, value)
