"""Cross-entropy of logits that are cut by vocabulary; the whole ones never come together."""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.parallel.ranks import coordinate
from lockstep.spmd.typed_collectives import all_reduce
from lockstep.spmd.types import I, P, V


def vocab_cross_entropy(logits_BTV: Tensor, labels_BT: Tensor, axis: str) -> Tensor:
    """Each token's cross-entropy.

    Args:
        logits_BTV: this rank's columns, S(2) along the axis, in any floating dtype.
        labels_BT: int64 of the whole vocabulary, the same on every rank of the axis; one that is
            negative stands for no token.
        axis: the mesh axis that cuts the vocabulary.

    Returns:
        Losses in f32 (or f64), [B, T], I along the axis; 0 where there is no token.
    """
    wide_BTV = logits_BTV if logits_BTV.dtype == torch.float64 else logits_BTV.float()
    top_BT1 = all_reduce(wide_BTV.detach().amax(-1, keepdim=True), axis, src=V, dst=I, op="max")
    shifted_BTV = wide_BTV - top_BT1
    total_BT = all_reduce(shifted_BTV.exp().sum(-1), axis, src=P, dst=I)
    columns = logits_BTV.shape[-1]
    own_BT = labels_BT - coordinate(axis) * columns
    held_BT = (own_BT >= 0) & (own_BT < columns)
    found_BT1 = shifted_BTV.gather(-1, own_BT.clamp(0, columns - 1)[..., None])
    target_BT = all_reduce(found_BT1.squeeze(-1) * held_BT, axis, src=P, dst=I)
    return (total_BT.log() - target_BT).masked_fill(labels_BT < 0, 0.0)
