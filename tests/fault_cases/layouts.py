"""Weights that are split in less plain ways, and what is computed over a split dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.fault_cases.regions import Copy, GatherRows, Reduce, ScatterRows, scattered
from tests.fault_cases.training import Program
from tests.fault_cases.weights import drawn, ones, replicated, shard

WIDTH, HEADS, ROWS = 8, 4, 6


def plain(step: Any, model: Any) -> Program:
    """Return a program of two tensor-parallel ranks that see the same rows."""

    def make(mesh: Any) -> Any:
        return model(mesh), drawn("x", ROWS, WIDTH), drawn("target", ROWS, WIDTH)

    return Program(step, make, {"tp": 2})


def train(model: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    loss = ((model(x) - target) ** 2).mean()
    loss.backward()
    return loss.detach()


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int) -> torch.Tensor:
    """Return attention over rows, of so many heads of q; k and v may have fewer."""
    rows = q.shape[0]
    q, k, v = (t.view(rows, -1, WIDTH // HEADS).transpose(0, 1) for t in (q, k, v))
    k, v = (t.expand(heads, -1, -1) if t.shape[0] == 1 else t for t in (k, v))
    mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
    return mixed.transpose(0, 1).reshape(rows, -1)


class Fused(nn.Module):
    """Queries, keys and values in one weight: a rank holds its heads of each of the three."""

    def __init__(self, mesh: Any, together: bool) -> None:
        super().__init__()
        self.group, self.heads = mesh.get_group("tp"), HEADS // mesh["tp"].size()
        self.qkv = shard("qkv", mesh, 1, WIDTH, 3 * WIDTH)
        if not together:
            whole, ranks = drawn("qkv", WIDTH, 3 * WIDTH), mesh["tp"].size()
            parts = [t.chunk(ranks, 1)[mesh.get_local_rank("tp")] for t in whole.chunk(3, 1)]
            with torch.no_grad():
                self.qkv.copy_(torch.cat(parts, 1))
        self.out = shard("out", mesh, 0, WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (Copy.apply(x, self.group) @ self.qkv).chunk(3, -1)
        mixed = attended(q, k, v, self.heads)
        return Reduce.apply(mixed @ self.out, self.group)


def fused_weight(wrong: bool) -> Program:
    """Split as if it were one matrix, a rank would take keys for queries."""
    return plain(train, lambda mesh: Fused(mesh, together=wrong))


class FewKeys(nn.Module):
    """One head of keys and values that all ranks hold, and queries that are split."""

    def __init__(self, mesh: Any, copied: bool) -> None:
        super().__init__()
        self.group, self.copied = mesh.get_group("tp"), copied
        self.heads = HEADS // mesh["tp"].size()
        self.wq = shard("wq", mesh, 1, WIDTH, WIDTH)
        self.wk = replicated("wk", WIDTH, WIDTH // HEADS)
        self.wv = replicated("wv", WIDTH, WIDTH // HEADS)
        self.out = shard("out", mesh, 0, WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Copy.apply(x, self.group)
        wk, wv = self.wk, self.wv
        if self.copied:
            wk, wv = Copy.apply(wk, self.group), Copy.apply(wv, self.group)
        k, v = x @ wk, x @ wv
        mixed = attended(x @ self.wq, k, v, self.heads)
        return Reduce.apply(mixed @ self.out, self.group)


def few_keys(wrong: bool) -> Program:
    """Each rank's heads say their part of the common keys' gradient."""
    return plain(train, lambda mesh: FewKeys(mesh, copied=not wrong))


class SplitNorm(nn.Module):
    """A norm over columns that are spread over the ranks."""

    def __init__(self, mesh: Any, whole: bool) -> None:
        super().__init__()
        self.group, self.whole = mesh.get_group("tp"), whole
        self.up = shard("up", mesh, 1, WIDTH, 2 * WIDTH)
        self.down = shard("down", mesh, 0, 2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = Copy.apply(x, self.group) @ self.up
        square = (wide**2).sum(-1, keepdim=True)
        if self.whole:
            square = Copy.apply(Reduce.apply(square, self.group), self.group)
        normed = wide * torch.rsqrt(square / (2 * WIDTH) + 1e-6)
        return Reduce.apply(normed @ self.down, self.group)


def split_norm(wrong: bool) -> Program:
    """The squares of all columns count, not of a rank's own."""
    return plain(train, lambda mesh: SplitNorm(mesh, whole=not wrong))


class ScatterBatch(torch.autograd.Function):
    """Wrong where rows are to be scattered: it takes the second dimension, of the same size."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return scattered(x.transpose(0, 1).contiguous(), group).transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ranks = dist.get_world_size(ctx.group)
        parts = [torch.empty_like(grad) for _ in range(ranks)]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts, 1), None


class RowsApart(nn.Module):
    """A region between rows that are spread over the ranks; then a sum along the rows."""

    def __init__(self, mesh: Any, leave: Any) -> None:
        super().__init__()
        self.group, self.leave = mesh.get_group("tp"), leave
        self.up = shard("up", mesh, 1, WIDTH, 2 * WIDTH)
        self.down = shard("down", mesh, 0, 2 * WIDTH, WIDTH)
        self.scale = ones("scale", WIDTH, sequence_parallel=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = GatherRows.apply(x * self.scale, self.group)
        wide = F.gelu(inner @ self.up)
        return self.leave.apply(wide @ self.down, self.group)


def scattered_dimension(wrong: bool) -> Program:
    """The rows go back to where they came from, along the dimension they came along."""

    def make(mesh: Any) -> Any:
        at, ranks = mesh.get_local_rank("tp"), mesh["tp"].size()
        x, target = (drawn(name, 4, 2, WIDTH).chunk(ranks)[at] for name in ("x", "target"))
        return RowsApart(mesh, ScatterBatch if wrong else ScatterRows), x, target

    def step(model: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = Reduce.apply(
            ((model(x).flatten(0, 1) - target.flatten(0, 1)) ** 2).sum(), model.group
        )
        loss.backward()
        dist.all_reduce(model.scale.grad, group=model.group)
        return loss.detach()

    return Program(step, make, {"tp": 2})
