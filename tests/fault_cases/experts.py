"""A mixture of experts over the data-parallel ranks: each holds one, and tokens travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function

import lockstep as ls
from lockstep import S
from tests.fault_cases.training import Program
from tests.fault_cases.weights import drawn

WIDTH, TOKENS, CAPACITY, RANKS = 6, 8, 3, 4


def exchanged(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the rows that the other ranks sent here."""
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x.contiguous(), group=group)
    return y


class Exchange(Function):
    """Rows to other ranks; their gradients come back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return exchanged(grad, ctx.group), None


class ExchangeOneWay(Function):
    """Wrong: gradients stay where the rows went."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class Experts(nn.Module):
    """Each expert takes the tokens of every rank that score highest for it."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.group, self.count = mesh.get_group("ep"), mesh["ep"].size()
        self.inner = nn.Parameter(drawn("inner", WIDTH, WIDTH))
        self.router = nn.Parameter(drawn("router", WIDTH, self.count))
        own = drawn("expert", self.count, WIDTH, WIDTH)[mesh.get_local_rank("ep")]
        self.expert = nn.Parameter(ls.typed(own.clone(), ep=S(0)))
        ls.typed(self.expert, ep=S(0))

    def send(self, rows: torch.Tensor) -> torch.Tensor:
        return Exchange.apply(rows, self.group)

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ self.inner)
        scores = torch.softmax(hidden @ self.router, -1)
        gates, chosen = scores.t().topk(CAPACITY, dim=-1)
        received = self.send(hidden[chosen.flatten()])
        worked = torch.tanh(received @ self.expert)
        back = Exchange.apply(worked, self.group) * gates.flatten()[:, None]
        mixed = torch.zeros_like(hidden).index_add(0, chosen.flatten(), back)
        return ((hidden + mixed - wanted) ** 2).mean()


class SendOneWay(Experts):
    def send(self, rows: torch.Tensor) -> torch.Tensor:
        return ExchangeOneWay.apply(rows, self.group)


def experts(
    after: Callable[[Any], None],
    model: Callable[[Any], nn.Module] = Experts,
    averaged: tuple[str, ...] = ("inner", "router"),
) -> Program:
    """Return a step whose loss is a mean over the ranks."""

    def make(mesh: Any) -> Any:
        rows = drawn("x", TOKENS * RANKS, WIDTH), drawn("wanted", TOKENS * RANKS, WIDTH)
        mine = mesh.get_local_rank("ep")
        return model(mesh), *(part.chunk(mesh["ep"].size())[mine] for part in rows)

    def step(model: Any, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(x, wanted), ep="mean")
        loss.backward()
        after(model)
        for weight in (getattr(model, name) for name in averaged):
            dist.all_reduce(weight.grad, group=model.group)
            weight.grad /= model.count
        return loss.detach()

    return Program(step, make, {"ep": RANKS}, ("ep",))


def scale_expert(model: Any) -> None:
    """An expert saw the tokens of all ranks: its gradient is a sum, of a loss that is a mean."""
    model.expert.grad.div_(model.count)


def scale_nothing(model: Any) -> None:
    """Wrong: the expert's gradient stays the sum."""


def reduce_expert(model: Any) -> None:
    """Wrong: the gradients of different experts are added up."""
    model.expert.grad.div_(model.count)
    dist.all_reduce(model.expert.grad, group=model.group)
