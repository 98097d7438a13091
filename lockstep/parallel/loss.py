"""The loss as a mean over all tokens of all ranks and micro-batches.

Each rank's loss is its share of that mean: its tokens' losses over the job's count of tokens. The
shares add up, however unequal the ranks' parts are, and so do their gradients: every reduction of
a gradient is a sum.
"""

from __future__ import annotations

from torch import Tensor

from lockstep.spmd.claims import typed
from lockstep.spmd.reduce import loss as said
from lockstep.spmd.typed_collectives import all_reduce
from lockstep.spmd.types import I, P


def token_count(labels: Tensor, *axes: str) -> Tensor:
    """Return how many tokens count over all ranks of some axes: i64[], the same on each.

    Args:
        labels: of any shape; a negative one counts for nothing.
        axes: along which labels differ.
    """
    count = (labels >= 0).sum()
    for axis in axes:
        count = all_reduce(count, axis, src=P, dst=I)
    return count


def token_mean(losses: Tensor, labels: Tensor, *axes: str, count: Tensor | None = None) -> Tensor:
    """Return this rank's share of the mean loss over all tokens; it says so, as `ls.loss` does.

    Args:
        losses: one a token.
        labels: of the same shape; where one is negative, its loss counts for nothing.
        axes: along which tokens differ.
        count: how many tokens share the mean; None: those of `labels` on all ranks.
    """
    if count is None:
        count = token_count(labels, *axes)
    share = (losses * (labels >= 0)).sum() / count
    return said(share, **dict.fromkeys(axes, "sum")) if axes else share


def job_loss(share: Tensor, *axes: str) -> Tensor:
    """Return the mean over all tokens from the ranks' shares of it, the same on each; to tell.

    Args:
        share: as `token_mean` gives it.
        axes: along which tokens differ.
    """
    whole = share.detach()
    for axis in axes:
        whole = all_reduce(whole, axis, src=P, dst=I)
    return typed(whole, **dict.fromkeys(axes, I))
