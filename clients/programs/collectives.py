"""torch.distributed's own ways to communicate: raw, functional, with autograd, in buckets."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_autograd
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional

import lockstep as ls
from clients.program import Program, copies, draws

WIDE, FFN, ROWS = 16, 32, 6


class Copy(torch.autograd.Function):
    """Into a tensor-parallel region: nothing, and an all-reduce of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad.contiguous().clone()
        work = dist.all_reduce(grad, group=ctx.group, async_op=True)
        work.wait()
        return grad, None


class Sum(torch.autograd.Function):
    """Out of it: an all-reduce, and nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None


class Shards(nn.Module):
    """A two-layer net whose middle is divided over the ranks of `tp`."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        up, down = torch.randn(FFN, WIDE) / 4, torch.randn(WIDE, FFN) / 4
        rank, size = mesh.get_local_rank("tp"), mesh.size()
        self.up = nn.Parameter(up.chunk(size, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(size, 1)[rank].clone())
        ls.type_parameters(self, {"up": {"tp": ls.S(0)}, "down": {"tp": ls.S(1)}})
        self.group = mesh.get_group("tp")


class Raw(Shards):
    """By hand-written Functions around dist.all_reduce, one of them asynchronous."""

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.gelu(Copy.apply(x, self.group) @ self.up.t())
        return Sum.apply(h @ self.down.t(), self.group)


class Sequence(Shards):
    """By torch.distributed.nn: rows are gathered and scattered, as sequence parallelism does."""

    def forward(self, x: Tensor) -> Tensor:
        own = x.chunk(self.group.size(), 0)[dist.get_rank(self.group)]
        rows = torch.cat(with_autograd.all_gather(own.contiguous(), self.group))
        h = nn.functional.gelu(rows @ self.up.t()) @ self.down.t()
        parts = [part.contiguous() for part in h.chunk(self.group.size(), 0)]
        return with_autograd.reduce_scatter(torch.empty_like(parts[0]), parts, group=self.group)


class Functional(Shards):
    """By functional collectives that have a backward."""

    def forward(self, x: Tensor) -> Tensor:
        own = x.chunk(self.group.size(), 0)[dist.get_rank(self.group)].contiguous()
        rows = functional.all_gather_tensor_autograd(own, 0, self.group)
        h = nn.functional.gelu(rows @ self.up.t()) @ self.down.t()
        return functional.reduce_scatter_tensor_autograd(h, "sum", 0, self.group)


def whole(net: nn.Module, x: Tensor) -> Tensor:
    """A step whose loss is the same on every rank."""
    loss = net(x).square().mean()
    loss.backward()
    return loss


def own_rows(net: nn.Module, x: Tensor) -> Tensor:
    """A step in which each rank has the loss of its own rows."""
    loss = ls.loss(net(x).square().sum(), tp="sum")
    loss.backward()
    return loss


def same(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Rows, the same on all ranks of `tp`."""
    return (torch.randn(ROWS, WIDE, generator=draws(mesh, call)),)


def mlp() -> nn.Module:
    """A net that every rank has whole."""
    return nn.Sequential(nn.Linear(WIDE, FFN), nn.GELU(), nn.Linear(FFN, 1))


def buckets(net: nn.Module, x: Tensor) -> Tensor:
    """Data parallelism by hand: gradients in one flat bucket, reduced while Python goes on."""
    loss = ls.loss(net(x).square().mean(), dp="mean")
    loss.backward()
    grads = [p.grad for p in net.parameters()]
    flat = torch.cat([grad.flatten() for grad in grads])
    work = dist.all_reduce(flat, async_op=True)
    shown = loss.detach().clone()
    dist.all_reduce(shown, dist.ReduceOp.AVG)
    work.wait()
    parts = (flat / dist.get_world_size()).split([grad.numel() for grad in grads])
    for parameter, part in zip(net.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter)
    return shown


class Experts(nn.Module):
    """One expert a rank; rows go to it and come back, by torch.distributed.nn's all-to-all."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        every = torch.randn(mesh.size(), WIDE, WIDE) / 4
        self.expert = nn.Parameter(every[mesh.get_local_rank("dp")].clone())
        ls.type_parameters(self, {"expert": {"dp": ls.V}})
        self.group = mesh.get_group("dp")

    def forward(self, x: Tensor) -> Tensor:
        sent = with_autograd.all_to_all_single(torch.empty_like(x), x, group=self.group)
        done = (sent @ self.expert).tanh()
        return with_autograd.all_to_all_single(torch.empty_like(x), done, group=self.group)


def experts_step(net: nn.Module, x: Tensor) -> Tensor:
    """A step in which an expert's gradient comes from all ranks' rows by itself."""
    loss = ls.loss(net(x).square().sum(), dp="sum")
    loss.backward()
    return loss


def plain(name: str, model: Any, step: Any, mesh: str = "tp") -> Program:
    """A program of torch alone."""
    data = ("dp",) if mesh == "dp" else ()
    return Program(name, "torch", model, same, step, mesh={mesh: 2}, data=data)


PROGRAMS = [
    plain("raw all_reduce in Functions", Raw, whole),
    plain("torch.distributed.nn, gather and scatter", Sequence, own_rows),
    plain("functional collectives", Functional, own_rows),
    plain("flat bucket, async", copies(mlp), buckets, "dp"),
    plain("experts by all_to_all_single", Experts, experts_step, "dp"),
]
