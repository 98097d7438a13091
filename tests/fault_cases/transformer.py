"""A tensor-parallel transformer, and its wrong variants: each overrides one thing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.fault_cases.regions import (
    Copy,
    GatherRows,
    GatherRowsOwnGradient,
    Reduce,
    ReduceBothWays,
    ScatterRows,
)
from tests.fault_cases.vocabulary import (
    CrossEntropy,
    looked_up,
    looked_up_unmasked,
)
from tests.fault_cases.weights import ones, replicated, shard

WIDTH, HEADS, WORDS = 8, 4, 12


class Block(nn.Module):
    """Attention and an MLP, with heads and hidden columns spread over the ranks."""

    rows_spread = False

    def __init__(self, mesh: Any, at: int) -> None:
        super().__init__()
        self.group, self.heads = mesh.get_group("tp"), HEADS // mesh["tp"].size()
        spread = self.rows_spread
        self.norm1 = ones(f"norm1 {at}", WIDTH, sequence_parallel=spread)
        self.norm1_bias = replicated(f"norm1 bias {at}", WIDTH, sequence_parallel=spread)
        self.norm2 = ones(f"norm2 {at}", WIDTH, sequence_parallel=spread)
        self.norm2_bias = replicated(f"norm2 bias {at}", WIDTH, sequence_parallel=spread)
        self.query_norm = ones(f"query norm {at}", WIDTH // HEADS)
        self.wq = shard(f"wq {at}", mesh, 1, WIDTH, WIDTH)
        self.wk = shard(f"wk {at}", mesh, 1, WIDTH, WIDTH)
        self.wv = shard(f"wv {at}", mesh, 1, WIDTH, WIDTH)
        self.wo = shard(f"wo {at}", mesh, 0, WIDTH, WIDTH)
        self.out_bias = replicated(f"out bias {at}", WIDTH, sequence_parallel=spread)
        self.up = shard(f"up {at}", mesh, 1, WIDTH, 4 * WIDTH)
        self.up_bias = shard(f"up bias {at}", mesh, 0, 4 * WIDTH)
        self.down = shard(f"down {at}", mesh, 0, 4 * WIDTH, WIDTH)
        self.down_bias = replicated(f"down bias {at}", WIDTH, sequence_parallel=spread)

    def into_attention(self, x: torch.Tensor) -> torch.Tensor:
        return Copy.apply(x, self.group)

    def out_of_attention(self, x: torch.Tensor) -> torch.Tensor:
        return Reduce.apply(x, self.group)

    def into_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return Copy.apply(x, self.group)

    def out_of_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return Reduce.apply(x, self.group)

    def query_scale(self) -> torch.Tensor:
        return Copy.apply(self.query_norm, self.group)

    def attention(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, batch, _ = hidden.shape
        parts = hidden @ self.wq, hidden @ self.wk, hidden @ self.wv
        q, k, v = (p.view(rows, batch, self.heads, -1).permute(1, 2, 0, 3) for p in parts)
        scale = self.query_scale()
        q = q * q.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * scale
        mixed = torch.softmax((q @ k.transpose(-1, -2)) * 0.5, -1) @ v
        return mixed.permute(2, 0, 1, 3).reshape(rows, batch, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = F.layer_norm(x, (WIDTH,), self.norm1, self.norm1_bias)
        hidden = self.into_attention(normed)
        out = self.attention(hidden) @ self.wo
        x = x + self.out_of_attention(out) + self.out_bias
        normed = F.layer_norm(x, (WIDTH,), self.norm2, self.norm2_bias)
        hidden = self.into_mlp(normed)
        wide = F.gelu(hidden @ self.up + self.up_bias)
        return self.finish(x, wide @ self.down)

    def finish(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return x + self.out_of_mlp(out) + self.down_bias


class SequenceBlock(Block):
    """Between the regions each rank holds some rows of the sequence."""

    rows_spread = True

    def into_attention(self, x: torch.Tensor) -> torch.Tensor:
        return GatherRows.apply(x, self.group)

    def out_of_attention(self, x: torch.Tensor) -> torch.Tensor:
        return ScatterRows.apply(x, self.group)

    def into_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return GatherRows.apply(x, self.group)

    def out_of_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return ScatterRows.apply(x, self.group)


class Transformer(nn.Module):
    """Words in, the mean loss of the next ones out; the vocabulary is spread over the ranks."""

    depth = 2

    def __init__(self, mesh: Any, block: type[Block] = Block, tied: bool = False) -> None:
        super().__init__()
        self.group, self.mesh, self.rows_spread = mesh.get_group("tp"), mesh, block.rows_spread
        spread = self.rows_spread
        self.embedding = shard("embedding", mesh, 0, WORDS, WIDTH)
        self.blocks = nn.ModuleList(block(mesh, at) for at in range(self.depth))
        self.last_norm = ones("last norm", WIDTH, sequence_parallel=spread)
        self.last_bias = replicated("last bias", WIDTH, sequence_parallel=spread)
        self.head = self.embedding if tied else shard("head", mesh, 0, WORDS, WIDTH)
        self.start = mesh.get_local_rank("tp") * self.embedding.shape[0]

    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        return looked_up(ids, self.embedding, self.start)

    def into_head(self, x: torch.Tensor) -> torch.Tensor:
        function = GatherRows if self.rows_spread else Copy
        return function.apply(x, self.group)

    def head_weight(self) -> torch.Tensor:
        return self.head

    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return CrossEntropy.apply(logits, labels, self.start, self.group, False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        terms = self.lookup(ids)
        x = (ScatterRows if self.rows_spread else Reduce).apply(terms, self.group)
        for block in self.blocks:
            x = block(x)
        normed = F.layer_norm(x, (WIDTH,), self.last_norm, self.last_bias)
        x = self.into_head(normed)
        weight = self.head_weight()
        logits = x @ weight.t()
        losses = self.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return losses.mean()


class NoCopyIntoAttention(Block):
    def into_attention(self, x: torch.Tensor) -> torch.Tensor:
        return x


class NoCopyIntoMlp(Block):
    def into_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return x


class NoReduceOutOfAttention(Block):
    def out_of_attention(self, x: torch.Tensor) -> torch.Tensor:
        return x


class NoReduceOutOfMlp(Block):
    def out_of_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return x


class TwiceOutOfAttention(Block):
    def out_of_attention(self, x: torch.Tensor) -> torch.Tensor:
        return ReduceBothWays.apply(x, self.group)


class TwiceOutOfMlp(Block):
    def out_of_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return ReduceBothWays.apply(x, self.group)


class NoCopyOfQueryNorm(Block):
    def query_scale(self) -> torch.Tensor:
        return self.query_norm


class BiasBeforeReduce(Block):
    def finish(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out = out + self.down_bias
        return x + self.out_of_mlp(out)


class OwnGradientIntoMlp(SequenceBlock):
    def into_mlp(self, x: torch.Tensor) -> torch.Tensor:
        return GatherRowsOwnGradient.apply(x, self.group)


class NoCopyIntoHead(Transformer):
    def into_head(self, x: torch.Tensor) -> torch.Tensor:
        return x


class NoMaskInLookup(Transformer):
    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        return looked_up_unmasked(ids, self.embedding, self.start)


class LabelOnEveryRank(Transformer):
    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return CrossEntropy.apply(logits, labels, self.start, self.group, True)


class DetachedHead(Transformer):
    def head_weight(self) -> torch.Tensor:
        return self.head.detach()
