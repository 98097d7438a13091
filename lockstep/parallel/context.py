"""Context parallelism: each rank holds some of the tokens of every sequence, and all keys visit it.

A sequence is cut in 2N chunks of which rank r of N holds chunks r and 2N-1-r, an early and a late
one, so that under a causal mask every rank has as much to do: its early queries look at the first
half of the keys, its late ones at all of them.

    keys, values   S(2) -> all_gather -> R, backward reduce_scatter
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.parallel.ranks import coordinate
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.typed_collectives import all_gather
from lockstep.spmd.types import R, S


def own_positions(tokens: int, axis: str, device: torch.device | None = None) -> Tensor:
    """Return where this rank's tokens stand in a sequence: i64[tokens / N], V along the axis.

    Args:
        tokens: of the whole sequence, a multiple of 2N.
        axis: the mesh axis that cuts it.
        device: of the result.
    """
    ranks, rank = axis_named(axis).size, coordinate(axis)
    chunk = tokens // (2 * ranks)
    within = torch.arange(chunk, device=device)
    return torch.cat([within + rank * chunk, within + (2 * ranks - 1 - rank) * chunk])


def own_tokens(x_BT: Tensor, axis: str) -> Tensor:
    """Return this rank's tokens of sequences that every rank of the axis holds whole: S(1)."""
    return x_BT.index_select(1, own_positions(x_BT.shape[1], axis, x_BT.device))


def causal_attention(q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, axis: str) -> Tensor:
    """Return what this rank's tokens read from themselves and all those before them.

    Args:
        q_BHTK, k_BGTK, v_BGTK: of this rank's tokens, in the order of `own_positions`; several
            query heads may share a key-value head.
        axis: the mesh axis that cuts the sequence.

    Returns:
        A new tensor like the queries.
    """
    tokens = q_BHTK.shape[2] * axis_named(axis).size
    k_BGTK = _in_order(all_gather(k_BGTK, axis, src=S(2), dst=R), axis)
    v_BGTK = _in_order(all_gather(v_BGTK, axis, src=S(2), dst=R), axis)
    keys_T = torch.arange(tokens, device=q_BHTK.device)
    read = []
    own = own_positions(tokens, axis, q_BHTK.device)
    for seen, q, at in zip((tokens // 2, tokens), q_BHTK.chunk(2, 2), own.chunk(2), strict=True):
        mask = keys_T[:seen] <= at[:, None]
        k, v = k_BGTK[:, :, :seen], v_BGTK[:, :, :seen]
        read.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True))
    return torch.cat(read, dim=2)


def _in_order(x_BGTK: Tensor, axis: str) -> Tensor:
    """All ranks' chunks, gathered rank by rank, in the order of the sequence."""
    chunks = x_BGTK.chunk(2 * axis_named(axis).size, dim=2)
    return torch.cat([*chunks[::2], *reversed(chunks[1::2])], dim=2)
