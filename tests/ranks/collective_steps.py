"""Every public collective in a step of its own, compiled and eager, on 2 x 2 real ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn as dnn

import lockstep as ls
from lockstep.capture.capture import capture
from tests.ranks.launch import Here

here = Here()
mesh = ls.mesh("cpu", dp=2, tp=2)
tp, dp = mesh.get_group("tp"), mesh.get_group("dp")


def all_reduce(x: torch.Tensor) -> Any:
    y = x.clone()
    dist.all_reduce(y, group=tp)
    z = x.clone()
    dist.all_reduce(z, op=dist.ReduceOp.MAX, group=dp)
    w = x.clone()
    dist.all_reduce(w)  # the world
    return y, z, w


def all_reduce_async(x: torch.Tensor) -> Any:
    y = x * 2
    work = dist.all_reduce(y, group=tp, async_op=True)
    other = x.sin()
    work.wait()
    return y + other


def broadcast(x: torch.Tensor) -> Any:
    y, z = x.clone(), x.clone()
    dist.broadcast(y, group=tp, group_src=1)
    dist.broadcast(z, 2)
    return y, z


def all_gather(x: torch.Tensor) -> Any:
    out = torch.empty(4, 4)
    dist.all_gather_into_tensor(out, x, group=tp)
    parts = [torch.empty(2, 4) for _ in range(2)]
    dist.all_gather(parts, x, group=dp)
    return out, parts


def reduce_scatter(x: torch.Tensor) -> Any:
    out, other = torch.empty(1, 4), torch.empty(4)
    dist.reduce_scatter_tensor(out, x, group=tp)
    dist.reduce_scatter(other, list(x.unbind()), group=dp)
    return out, other


def all_to_all(x: torch.Tensor) -> Any:
    even, parts = torch.empty(2, 4), [torch.empty(4), torch.empty(4)]
    dist.all_to_all_single(even, x, group=tp)
    uneven = torch.empty(2, 4)
    dist.all_to_all_single(uneven, x, [1, 1], [1, 1], group=dp)
    dist.all_to_all(parts, list(x.unbind()), group=tp)
    return even, uneven, parts


def of_scalars(x: torch.Tensor) -> Any:
    loss, parts, other = x.sum(), [torch.empty(()) for _ in range(2)], torch.empty(())
    dist.all_gather(parts, loss, group=dp)
    dist.reduce_scatter(other, parts, group=tp)
    dist.broadcast(loss, group=tp, group_src=1)
    return loss, parts, other


def functional_ones(x: torch.Tensor) -> Any:
    summed = functional.all_reduce(x, "sum", tp)
    gathered = functional.all_gather_tensor(x, 0, (mesh, 1))
    scattered = functional.reduce_scatter_tensor(x, "sum", 0, mesh["dp"])
    return summed + 0, gathered + 0, scattered + 0


def with_gradients(x: torch.Tensor) -> Any:
    w = x.detach().requires_grad_()
    y = dnn.functional.all_reduce(w * 2, group=tp)
    (grad,) = torch.autograd.grad((y * y).sum(), w)
    return grad


class Copy(torch.autograd.Function):
    """Forward: nothing; backward: all-reduce, in Python and in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=tp)
        return grad


def in_a_custom_backward(x: torch.Tensor) -> Any:
    w = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad((Copy.apply(w) * x).sum(), w)
    return grad


STEPS = [
    all_reduce, all_reduce_async, broadcast, all_gather, reduce_scatter, all_to_all, of_scalars,
    functional_ones, with_gradients, in_a_custom_backward,
]  # fmt: skip


def flat(value: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for t in torch.utils._pytree.tree_leaves(value)]


results: dict[str, Any] = {}
for step in STEPS:
    torch.manual_seed(here.rank)
    x = torch.randn(2, 4)
    eager = flat(step(x))
    compiled = flat(ls.compile(mesh=mesh, backend="graph")(step)(x))
    graph = capture(step, x)
    results[step.__name__] = {
        "equal": len(eager) == len(compiled) and all(map(torch.equal, eager, compiled)),
        "axes": [c["axis"] for c in graph.schedule],
        "ops": [c["op"] for c in graph.schedule],
        "lines": [c["line"].split(":")[0] for c in graph.schedule],
        "phases": [c["phase"] for c in graph.schedule],
        "text": graph.gm.code,
    }
here.result(results)
dist.destroy_process_group()
