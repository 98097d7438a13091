"""Tensor parallelism: linear layers cut by columns, then by rows, and an embedding by vocabulary.

column   x R,    weight S(0) [out, in]      -> y S(-1)   a plain `nn.Linear` on its shard
row      x S(-1), weight S(1) [out, in]     -> the stream
embedding tokens, weight S(0) [vocabulary, D] -> the stream
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.parallel.become import become
from lockstep.parallel.ranks import coordinate
from lockstep.parallel.sequence import Stream


class Row:
    """A linear layer over the columns of which each rank has computed some."""

    stream: Stream
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        y = self.stream.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias  # once, not once a rank


class VocabEmbedding:
    """An embedding of which each rank holds some rows: those of other ranks are zeros here."""

    stream: Stream
    weight: Tensor

    def forward(self, tokens_BT: Tensor) -> Tensor:
        weight = self.weight
        rows = weight.shape[0]
        own_BT = tokens_BT - coordinate(self.stream.axis) * rows
        held_BT = (own_BT >= 0) & (own_BT < rows)
        x_BTD = F.embedding(own_BT.clamp(0, rows - 1), weight)
        return self.stream.leave(x_BTD.masked_fill(~held_BT[..., None], 0.0))


def row(linear: nn.Module, stream: Stream) -> None:
    """Let a linear layer read columns and give the stream.

    Args:
        linear: changed in place; its weight is S(1) along the stream's axis, its bias I.
        stream: how the stream lies.
    """
    if linear.bias is not None and stream.sequence:
        from lockstep.parallel.become import read_through

        read_through(linear, "bias", stream.weight)
    become(linear, Row, stream=stream)


def vocab_embedding(embedding: nn.Module, stream: Stream) -> None:
    """Let an embedding look its own rows up, and give the stream.

    Args:
        embedding: changed in place; its weight is S(0) along the stream's axis.
        stream: how the stream lies.
    """
    become(embedding, VocabEmbedding, stream=stream)
