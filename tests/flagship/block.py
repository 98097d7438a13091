"""A tensor-parallel Llama block in typed collectives, right as long as the sequence is whole.

Switched to sequence parallelism it lacks one conversion, the most frequent fault of all: the norms
then scale a shard of the tokens, so each rank's gradient of their weights is of its own tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep import I, P, R, S

WIDTH, HEADS, HIDDEN, TOKENS, BATCH = 16, 4, 32, 8, 2


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


class RMSNorm(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = ls.typed(nn.Parameter(1 + drawn(seed, WIDTH)), tp=I)

    def forward(self, x_BTD: Tensor) -> Tensor:
        scale_BT1 = torch.rsqrt(x_BTD.pow(2).mean(-1, keepdim=True) + 1e-5)
        return x_BTD * scale_BT1 * self.weight


class Sharded(nn.Module):
    """A weight [out, in] cut along one dimension over tp."""

    def __init__(self, mesh: object, seed: int, out: int, width: int, dim: int) -> None:
        super().__init__()
        ranks, rank = mesh.size(), mesh.get_local_rank()
        part = drawn(seed, out, width).chunk(ranks, dim)[rank].clone()
        self.weight = ls.typed(nn.Parameter(part), tp=S(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Block(nn.Module):
    """Attention, then SwiGLU, each from its norm into the ranks' shards and back to the stream."""

    def __init__(self, mesh: object, sequence_parallel: bool) -> None:
        super().__init__()
        self.sequence_parallel = sequence_parallel
        self.attention_norm, self.ffn_norm = RMSNorm(1), RMSNorm(2)
        self.wq, self.wk = (Sharded(mesh, seed, WIDTH, WIDTH, 0) for seed in (3, 4))
        self.wv, self.wo = Sharded(mesh, 5, WIDTH, WIDTH, 0), Sharded(mesh, 6, WIDTH, WIDTH, 1)
        self.w1, self.w3 = (Sharded(mesh, seed, HIDDEN, WIDTH, 0) for seed in (7, 8))
        self.w2 = Sharded(mesh, 9, WIDTH, HIDDEN, 1)

    def entered(self, x_BTD: Tensor) -> Tensor:
        """Every token, as the column-parallel matrices read it."""
        if self.sequence_parallel:
            return ls.all_gather(x_BTD, "tp", src=S(1), dst=R)
        return ls.convert(x_BTD, "tp", src=I, dst=R)

    def left(self, x_BTD: Tensor) -> Tensor:
        """The sum of what the ranks' row-parallel matrices gave."""
        if self.sequence_parallel:
            return ls.reduce_scatter(x_BTD, "tp", src=P, dst=S(1))
        return ls.all_reduce(x_BTD, "tp", src=P, dst=I)

    def attention(self, x_BTD: Tensor) -> Tensor:
        heads = [w(x_BTD).unflatten(-1, (-1, WIDTH // HEADS)) for w in (self.wq, self.wk, self.wv)]
        q_BHTK, k_BHTK, v_BHTK = (x_BTHK.transpose(1, 2) for x_BTHK in heads)
        read_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        return self.wo(read_BHTK.transpose(1, 2).flatten(-2))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_BTD = x_BTD + self.left(self.attention(self.entered(self.attention_norm(x_BTD))))
        h_BTD = self.entered(self.ffn_norm(x_BTD))
        return x_BTD + self.left(self.w2(F.silu(self.w1(h_BTD)) * self.w3(h_BTD)))


def batch(mesh: object, sequence_parallel: bool) -> Tensor:
    """This rank's part of the stream: all tokens, or a shard of them."""
    x_BTD = drawn(10, BATCH, TOKENS, WIDTH)
    if not sequence_parallel:
        return ls.typed(x_BTD, tp=I)
    return ls.typed(x_BTD.chunk(mesh.size(), 1)[mesh.get_local_rank()].clone(), tp=S(1))


def step(block: Block, x_BTD: Tensor) -> Tensor:
    loss = block(x_BTD).square().sum()
    if block.sequence_parallel:
        loss = ls.typed(loss, tp=P)
    loss.backward()
    return loss
