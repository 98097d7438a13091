"""The mean over all ranks' data where the ranks hold unequal parts of it."""

from __future__ import annotations

import sys

import torch

from lockstep.errors import UsageError
from lockstep.spmd import claims
from lockstep.spmd.mesh import axis
from lockstep.spmd.typed_collectives import all_reduce
from lockstep.spmd.types import P, R


def weighted_mean(
    losses: torch.Tensor, weights: torch.Tensor | None = None, *axes: str, **odd: object
) -> torch.Tensor:
    """This rank's share of the mean loss over all data; the ranks' shares add up to it.

    Losses are summed by their weights and divided by the weights' sum over all ranks, so that loss
    and gradients are those of one process that holds all the data, however unequal the ranks'
    parts are. It is a claim too, as `ls.loss(..., dp="sum")`: reduce the gradients by "sum".
    Collective over the axes.

    Args:
        losses: one loss a sample, or a token: `reduction="none"`.
        weights: how much each counts, 0 for padding, as `ls.even_batches` gives them; the shape of
            `losses`, or its first dimensions. No gradient goes to them.
        axes: the mesh axes over which the data are split, such as "dp".
        odd: nothing has a keyword: a mean has no "sum" or "mean" to choose.

    Returns:
        A tensor of one element. What to print is
        `ls.all_reduce(loss.detach(), "dp", src=ls.P, dst=ls.R)`.

    Raises:
        UsageError: no axis, an unknown one, one twice; no tensors, or weights that do not fit the
            losses.

    Example:
        >>> import lockstep as ls
        >>> _ = ls.mesh(dp=-1)
        >>> losses, weights = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([1.0, 1.0, 0.0])
        >>> ls.weighted_mean(losses, weights, "dp").item()
        2.0
    """
    if odd:
        raise UsageError(
            "ls.weighted_mean takes no keywords",
            got=", ".join(f"{name}={value!r}" for name, value in odd.items()),
            want="the losses, the weights, and the names of mesh axes",
            fix=f"ls.weighted_mean(losses, weights, {', '.join(map(repr, odd))})",
        )
    _refuse_wrong(losses, weights, axes)
    assert weights is not None  # it is a tensor
    weights = _fitted(losses, weights.detach())
    count = weights.sum()
    for name in axes:
        count = all_reduce(count, name, src=P, dst=R)
    share = (losses * weights).sum() / count
    if claims.recording is not None:
        place = claims.Place.of(sys._getframe(1))
        claims.claim(share, dict.fromkeys(axes, P), place, "ls.weighted_mean")
    return share


def _refuse_wrong(losses: object, weights: object, axes: tuple[str, ...]) -> None:
    for what, value in (("losses", losses), ("weights", weights)):
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"ls.weighted_mean: the {what} are no tensor",
                got="nothing" if value is None else f"a {type(value).__name__}",
                fix='ls.weighted_mean(losses, weights, "dp")',
            )
    if not axes:
        raise UsageError("ls.weighted_mean needs an axis", fix='ls.weighted_mean(..., "dp")')
    for name in axes:
        if not isinstance(name, str):
            raise UsageError(
                f"ls.weighted_mean: {name!r} is no mesh axis", want='names of axes, such as "dp"'
            )
        axis(name)
    if len(set(axes)) < len(axes):
        raise UsageError(
            "ls.weighted_mean: an axis is named twice",
            got=", ".join(axes),
            want="each axis once",
        )


def _fitted(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weights in the shape of the losses."""
    if losses.shape == weights.shape:
        return weights
    if losses.shape[: weights.dim()] == weights.shape:
        rest = (1,) * (losses.dim() - weights.dim())
        return weights.reshape(*weights.shape, *rest).expand_as(losses)
    raise UsageError(
        "ls.weighted_mean: the weights do not fit the losses",
        got=f"losses of shape {list(losses.shape)}, weights of shape {list(weights.shape)}",
        want="weights of the shape of the losses, or of its first dimensions",
        fix=[
            'reduction="none", so that each sample or token has its loss',
            "losses.view(len(weights), -1)",
        ],
    )
