"""A tensor-parallel block: collectives by axis, an own autograd Function, splits by the rank."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import lockstep as ls

HIDDEN, HEADS = 8, 2
VOCABULARY = 12
SCALING = 0.5


class Reduce(Enum):
    SUM = "sum"
    MEAN = "mean"


class Copied(torch.autograd.Function):
    """Nothing forward, a sum backward."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        grad = grad * Copied.factor
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Vocabulary(nn.Module):
    """An embedding whose rows are shared out over tp."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh
        self.rows = VOCABULARY // mesh["tp"].size()
        self.weight = nn.Parameter(torch.randn(self.rows, HIDDEN))

    def forward(self, tokens: Any) -> Any:
        start = self.mesh.get_local_rank("tp") * self.rows
        outside = (tokens < start) | (tokens >= start + self.rows)
        own = (tokens - start).masked_fill(outside, 0)
        rows = F.embedding(own, self.weight).masked_fill(outside.unsqueeze(-1), 0.0)
        return ls.all_reduce(rows, "tp", src=ls.P, dst=ls.I)


class Attention(nn.Module):
    causal = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.heads = HEADS
        self.inner = nn.Linear(HIDDEN, 3 * HIDDEN // size, bias=False)
        self.outer = nn.Linear(HIDDEN // size, HIDDEN, bias=False)

    def forward(self, x: Any, group: Any) -> Any:
        x = Copied.apply(x, group)
        parts = self.inner(x).chunk(3, dim=-1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        mixed = weigh(q, k, v, self.causal).transpose(1, 2).flatten(2)
        return ls.all_reduce(self.outer(mixed), "tp", src=ls.P, dst=ls.I)


def weigh(q: Any, k: Any, v: Any, causal: bool, *, limit: float = 30.0) -> Any:
    scores = q @ k.transpose(-2, -1) * SCALING
    scores = limit * torch.tanh(scores / limit)
    if causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(ahead, -1e4)
    return F.softmax(scores, dim=-1) @ v


class Model(nn.Module):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.words = Vocabulary(mesh)
        self.attend = Attention(mesh["tp"].size())
        self.norm = nn.LayerNorm(HIDDEN)
        self.residual = True
        self.how = Reduce.MEAN

    def forward(self, tokens: Any, group: Any) -> Any:
        x = self.words(tokens)
        mixed = self.attend(self.norm(x), group)
        return x + mixed if self.residual else mixed


def loss_of(x: Any, how: Reduce) -> Any:
    per = x.square().flatten(1)
    return per.mean() if how is Reduce.MEAN else per.sum()


def build(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    model, group = Model(mesh), mesh.get_group("tp")

    def step(model: Any, tokens: Any) -> Any:
        loss = loss_of(model(tokens, group), model.how)
        loss = ls.loss(loss, dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss.detach()

    return step, (model, torch.randint(0, VOCABULARY, (2, 3)))
