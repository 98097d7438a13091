"""The loss as a claim, and the data-parallel reduction of gradients."""

from __future__ import annotations

import sys

import torch

from lockstep.errors import UsageError
from lockstep.spmd import claims, collectives
from lockstep.spmd.mesh import Axis, axis
from lockstep.spmd.types import P

_WAYS = ("sum", "mean")


def loss(value: torch.Tensor, **axes: str) -> torch.Tensor:
    """Say how each rank's loss makes up the job's; communicates nothing and changes nothing.

    Args:
        value: this rank's loss, a tensor of one element.
        axes: per mesh axis "mean" (each rank holds its share of a mean) or "sum".

    Returns:
        `value` itself.

    Raises:
        UsageError: an unknown axis or word, or a tensor of more than one element.

    Example:
        >>> loss = ls.loss(model(tokens, labels), dp="mean")                 # doctest: +SKIP
    """
    checked = _checked(axes, "ls.loss")
    _expect(value, torch.Tensor, "ls.loss")
    if value.numel() != 1:
        raise UsageError(
            "a loss has one element",
            got=f"a tensor of shape {list(value.shape)}",
            fix="reduce it first: .mean() or .sum()",
        )
    if claims.recording is not None:
        types = {over.name: P(way) for over, way in checked}
        claims.claim(value, types, claims.Place.of(sys._getframe(1)), "ls.loss")
    return value


def reduce_grads(model: torch.nn.Module, **axes: str) -> None:
    """All-reduce every gradient of a model over mesh axes, each tensor on its own.

    Parameters that need no gradient are left alone. A parameter that needs one and has none is
    left alone too, which must be so on all ranks. Collective over the named axes.

    Args:
        model: its `.grad` tensors are replaced by the reduced ones.
        axes: per mesh axis "mean" or "sum", as `ls.loss` says for the loss.

    Raises:
        UsageError: an unknown axis or word.

    Example:
        >>> ls.reduce_grads(model, dp="mean")                                # doctest: +SKIP
    """
    _expect(model, torch.nn.Module, "ls.reduce_grads")
    parameters = [p for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for over, way in _checked(axes, "ls.reduce_grads"):
            started = [collectives.all_reduce(p.grad, "sum", over.name) for p in parameters]  # type: ignore[arg-type]
            for parameter, pending in zip(parameters, started, strict=True):
                total = collectives.wait(pending)
                parameter.grad = total / over.size if way == "mean" else total


def _expect(value: object, kind: type, who: str) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{who} takes a {kind.__name__}", got=f"a {type(value).__name__}")


def _checked(axes: dict[str, str], who: str) -> list[tuple[Axis, str]]:
    if not axes:
        raise UsageError(f"{who} needs an axis", fix=f'{who}(..., dp="mean")')
    for name, way in axes.items():
        if way not in _WAYS:
            raise UsageError(f"{who}: {name}={way!r}", want=f"one of {', '.join(_WAYS)}")
    return [(axis(name), way) for name, way in axes.items()]
