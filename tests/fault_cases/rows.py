"""Rows of a sequence over the ranks: draws, labels and the way in."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import lockstep as ls
from tests.fault_cases.experts import experts, scale_expert
from tests.fault_cases.regions import GatherRows, Reduce, ScatterRows, gathered, own_rows
from tests.fault_cases.training import Program
from tests.fault_cases.weights import drawn, ones, replicated, shard

WIDTH, ROWS, WORDS = 8, 8, 10


class SplitRows(torch.autograd.Function):
    """The own rows of what every rank holds; backward, all rows' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return own_rows(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, ctx.group), None


class SplitRowsPadded(torch.autograd.Function):
    """Wrong: the other rows' gradients stay zero."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return own_rows(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ranks, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        parts = [torch.zeros_like(grad) for _ in range(ranks)]
        parts[rank] = grad
        return torch.cat(parts), None


class Rows(nn.Module):
    """A scale of whole rows, a region, and rows apart in between."""

    def __init__(self, mesh: Any, split: Any, seed: int | None, apart: bool) -> None:
        super().__init__()
        self.group, self.split = mesh.get_group("tp"), split
        self.seed = None if seed is None else seed + (mesh.get_local_rank("tp") if apart else 0)
        self.first = ones("first", WIDTH)
        self.scale = ones("scale", WIDTH, sequence_parallel=True)
        self.up = shard("up", mesh, 1, WIDTH, 2 * WIDTH)
        self.down = shard("down", mesh, 0, 2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = self.split.apply(x * self.first, self.group) * self.scale
        if self.seed is not None:
            torch.manual_seed(self.seed)
            own = F.dropout(own, 0.5)
        wide = F.gelu(GatherRows.apply(own, self.group) @ self.up)
        return ScatterRows.apply(wide @ self.down, self.group)


def rows_program(split: Any, seed: int | None = None, apart: bool = True) -> Program:
    def make(mesh: Any) -> Any:
        return Rows(mesh, split, seed, apart), drawn("x", ROWS, WIDTH)

    def step(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss = Reduce.apply((model(x) ** 2).sum(), model.group)
        loss.backward()
        dist.all_reduce(model.scale.grad, group=model.group)
        return loss.detach()

    return Program(step, make, {"tp": 2})


def split_backward(wrong: bool) -> Program:
    """What every rank holds gets its whole gradient back."""
    return rows_program(SplitRowsPadded if wrong else SplitRows)


def row_draws(wrong: bool) -> Program:
    """Different rows drop different elements."""
    return rows_program(SplitRows, seed=3, apart=not wrong)


def shifted_labels(wrong: bool) -> Program:
    """Each word predicts the next one, also the last of a rank's words the next rank's first."""

    def make(mesh: Any) -> Any:
        words = torch.randint(0, WORDS, (2 * ROWS,), generator=torch.Generator().manual_seed(3))
        model = nn.Module()
        model.group, model.table = mesh.get_group("cp"), replicated("table", WORDS, WORDS)
        ls.typed(model.table, cp=ls.R)
        return model, words.chunk(mesh["cp"].size())[mesh.get_local_rank("cp")]

    def following(words: torch.Tensor, group: Any) -> torch.Tensor:
        if wrong:
            return words.roll(-1)
        firsts = gathered(words[:1], group).roll(-1)
        return torch.cat([words[1:], own_rows(firsts, group)])

    def step(model: Any, words: torch.Tensor) -> torch.Tensor:
        after = following(words, model.group)
        losses = F.cross_entropy(F.embedding(words, model.table), after)
        loss = ls.loss(losses, cp="mean")
        loss.backward()
        dist.all_reduce(model.table.grad, group=model.group)
        model.table.grad /= dist.get_world_size(model.group)
        return loss.detach()

    return Program(step, make, {"cp": 2}, ("cp",))


def router_left_out(wrong: bool) -> Program:
    """Every rank routes its own tokens by the same router."""
    return experts(scale_expert, averaged=("inner",) if wrong else ("inner", "router"))
