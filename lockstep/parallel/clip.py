"""Clipping by the true global norm: of all gradients, each element of the whole model once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lockstep.parallel.tied import copied_from
from lockstep.spmd.signature import types_of
from lockstep.spmd.typed_collectives import all_reduce
from lockstep.spmd.types import I, P


def grad_norm(model: nn.Module) -> Tensor:
    """Return the norm of the whole model's gradient: f32[] (or f64), the same on every rank.

    Squares of shards are added up over the axes that cut them; copies count once, also those that
    two stages of a pipeline hold. Call it after `reduce_grads`. Collective over the axes along
    which parameters are shards.

    Args:
        model: placed.
    """
    squares: dict[tuple[str, ...], list[Tensor]] = {}
    for parameter in model.parameters():
        if parameter.grad is None or copied_from(parameter) is not None:
            continue
        axes = tuple(a for a, kind in types_of(parameter).items() if kind.kind in "SV")
        grad = parameter.grad.detach()
        wide = grad if grad.dtype == torch.float64 else grad.float()
        squares.setdefault(axes, []).append(wide.square().sum())
    parts = []
    for axes, terms in squares.items():
        total = torch.stack(terms).sum()
        for axis in axes:
            total = all_reduce(total, axis, src=P, dst=I)
        parts.append(total)
    return torch.stack(parts).sum().sqrt() if parts else torch.zeros(())


@torch.no_grad()
def clip_grad_norm(model: nn.Module, most: float) -> Tensor:
    """Scale all gradients alike, so that their global norm is at most `most`.

    Args:
        model: placed; its `.grad` are replaced. Reduce them before.
        most: the largest norm that is left as it is.

    Returns:
        The norm before, as `grad_norm` gives it.
    """
    norm = grad_norm(model)
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad * scale.to(parameter.grad.dtype)
    return norm
