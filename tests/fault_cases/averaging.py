"""Losses and gradients of data-parallel ranks: how they are counted, clipped and added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from tests.fault_cases.regions import gathered, own_rows, reduced, scattered
from tests.fault_cases.training import Program
from tests.fault_cases.weights import drawn

WIDTH, ROWS = 6, 8


class Regression(nn.Module):
    """Two layers that every data-parallel rank holds."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group, self.ranks = mesh.get_group("dp"), mesh["dp"].size()
        self.inner = nn.Parameter(ls.typed(drawn("inner", WIDTH, WIDTH), dp=ls.R))
        self.outer = nn.Parameter(drawn("outer", WIDTH, WIDTH))
        for weight in self.parameters():
            ls.typed(weight, dp=ls.R)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.inner) @ self.outer


def rows_of(mesh: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's inputs, what is wanted of them, and which of them count."""
    counts = torch.tensor([1.0, 1, 1, 1, 1, 0, 0, 0], dtype=torch.float64)
    wholes = drawn("rows", ROWS, WIDTH), drawn("wanted rows", ROWS, WIDTH), counts
    at = mesh.get_local_rank("dp")
    x, wanted, counts = (whole.chunk(mesh["dp"].size())[at] for whole in wholes)
    return x, wanted, counts


def program(step: Callable[..., Any]) -> Program:
    """Return a program of two data-parallel ranks."""
    return Program(step, lambda mesh: (Regression(mesh), *rows_of(mesh)), {"dp": 2}, ("dp",))


def average(model: Any) -> None:
    for weight in model.parameters():
        dist.all_reduce(weight.grad, group=model.group)
        weight.grad /= model.ranks


def unequal_counts(wrong: bool) -> Program:
    """A mean over rows that count, of which the ranks have different numbers."""

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        errors = ((model(x) - wanted) ** 2).sum(-1) * counts
        total = counts.sum()
        if not wrong:
            total = reduced(total, model.group) / model.ranks
        loss = errors.sum() / total
        loss = ls.loss(loss, dp="mean")
        loss.backward()
        average(model)
        return loss.detach()

    return program(step)


def auxiliary_loss(wrong: bool) -> Program:
    """A balance term of all ranks' rows, on every rank; its gradient is shared out alike."""

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        out = model(x)
        share = Shared.apply(out.mean(0), model.group)
        if not wrong:
            share = share / model.ranks
        balance = (share**2).sum()
        main = ((out - wanted) ** 2).mean()
        loss = ls.loss(main + 0.1 * balance, dp="mean")
        loss.backward()
        average(model)
        return loss.detach()

    return program(step)


class Shared(torch.autograd.Function):
    """The sum over ranks, for a loss that each of them has a share of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return reduced(grad, ctx.group), None


def clipped_early(wrong: bool) -> Program:
    """Gradients are scaled to a norm: of the job's gradient, not of a rank's."""

    def clip(model: Any) -> None:
        squares = [(weight.grad**2).sum() for weight in model.parameters()]
        norm = torch.stack(squares).sum().sqrt()
        for weight in model.parameters():
            weight.grad /= norm

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        loss = ls.loss(((model(x) - wanted) ** 2).mean(), dp="mean")
        loss.backward()
        for phase in (clip, average) if wrong else (average, clip):
            phase(model)
        return loss.detach()

    return program(step)


def reduced_each_time(wrong: bool) -> Program:
    """Two micro-batches add up, and are summed over the ranks once: not after each of them."""

    def add_up(model: Any) -> None:
        for weight in model.parameters():
            dist.all_reduce(weight.grad, group=model.group)

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        total = x.new_zeros(())
        for part, target in zip(x.chunk(2), wanted.chunk(2), strict=True):
            loss = ls.loss(((model(part) - target) ** 2).sum(), dp="sum")
            loss.backward()
            total = total + loss.detach()
            if wrong:
                add_up(model)
        if not wrong:
            add_up(model)
        return total

    return program(step)


class GatherWeight(torch.autograd.Function):
    """A weight that is spread over the ranks, whole; each rank gets its rows of the mean."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return scattered(grad, ctx.group) / dist.get_world_size(ctx.group), None


class GatherWeightOwnGradient(torch.autograd.Function):
    """Wrong: a rank keeps what its own batch says of its rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_rows(grad, ctx.group), None


class Spread(nn.Module):
    """A layer whose weight's rows are spread over the data-parallel ranks."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group = mesh.get_group("dp")
        own = drawn("spread", WIDTH, WIDTH).chunk(mesh["dp"].size())[mesh.get_local_rank("dp")]
        self.rows = nn.Parameter(own.clone())
        ls.typed(self.rows, dp=ls.S(0))


def spread_weight(wrong: bool) -> Program:
    """A fully sharded weight is gathered before use."""
    function = GatherWeightOwnGradient if wrong else GatherWeight

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor) -> Any:
        weight = function.apply(model.rows, model.group)
        loss = ls.loss(((torch.tanh(x @ weight) - wanted) ** 2).mean(), dp="mean")
        loss.backward()
        return loss.detach()

    return Program(step, lambda mesh: (Spread(mesh), *rows_of(mesh)), {"dp": 2}, ("dp",))
