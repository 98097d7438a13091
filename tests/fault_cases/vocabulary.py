"""A vocabulary that is split over the ranks: its lookup and its cross entropy."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F


def looked_up(ids: torch.Tensor, weight: torch.Tensor, start: int) -> torch.Tensor:
    """Return this rank's terms of the rows: zero where it does not hold the word."""
    elsewhere = (ids < start) | (ids >= start + weight.shape[0])
    rows = F.embedding((ids - start).masked_fill(elsewhere, 0), weight)
    return rows.masked_fill(elsewhere[..., None], 0.0)


def looked_up_unmasked(ids: torch.Tensor, weight: torch.Tensor, start: int) -> torch.Tensor:
    """Wrong: a word that another rank holds gets this rank's first row."""
    elsewhere = (ids < start) | (ids >= start + weight.shape[0])
    unmasked = F.embedding((ids - start).masked_fill(elsewhere, 0), weight)
    return unmasked


class CrossEntropy(torch.autograd.Function):
    """The loss of each row of logits, of which each rank holds some columns.

    Wrong with `all_`: the backward then subtracts one on every rank, not only on the label's own.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, start: int, group: Any, all_: bool
    ) -> torch.Tensor:
        top = logits.max(-1)[0]
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - top[:, None]
        elsewhere = (labels < start) | (labels >= start + logits.shape[1])
        column = (labels - start).masked_fill(elsewhere, 0)[:, None]
        at_label = shifted.gather(1, column)[:, 0].masked_fill(elsewhere, 0.0)
        dist.all_reduce(at_label, group=group)
        powers = shifted.exp()
        total = powers.sum(-1)
        dist.all_reduce(total, group=group)
        here = torch.ones_like(total) if all_ else (~elsewhere).to(total.dtype)
        ctx.save_for_backward(powers / total[:, None], column, here)
        return total.log() - at_label

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        share, column, here = ctx.saved_tensors
        logits = share.clone()
        logits.scatter_add_(1, column, -here[:, None])
        return logits * grad[:, None], None, None, None, None
