"""Right and wrong programs for the checker, in plain torch.distributed and autograd Functions.

Each case gives a step, and what builds its arguments on one rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lockstep.spmd.claims import typed
from lockstep.spmd.types import I, P, R, S, Type


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
        ctx.backward_of = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.backward_of(grad), None, None


def total(x: torch.Tensor) -> torch.Tensor:
    y = x.detach().clone()
    dist.all_reduce(y)
    return y


def copy_in(x: torch.Tensor) -> torch.Tensor:
    """I -> R."""
    __tracebackhide__ = True
    return _Pair.apply(x, torch.clone, total)


def reduce_out(x: torch.Tensor, back: Any = torch.clone) -> torch.Tensor:
    """P -> I, or P -> R where `back` reduces."""
    __tracebackhide__ = True
    return _Pair.apply(x, total, back)


def gather(x: torch.Tensor) -> torch.Tensor:
    """S(0) -> R."""
    __tracebackhide__ = True
    return _Pair.apply(
        x, _gathered, lambda g: total(g).chunk(dist.get_world_size())[_here()].clone()
    )


def scatter(x: torch.Tensor) -> torch.Tensor:
    """P -> S(0)."""
    __tracebackhide__ = True
    return _Pair.apply(
        x, lambda t: total(t).chunk(dist.get_world_size())[_here()].clone(), _gathered
    )


def _gathered(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def _here() -> int:
    return dist.get_rank()


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Held(nn.Module):
    """Parameters by name, with the claims that were made of them."""

    def __init__(self, mesh: Any, **tensors: tuple[torch.Tensor, Type]) -> None:
        super().__init__()
        for name, (whole, kind) in tensors.items():
            axis = mesh.mesh_dim_names[0]
            part = whole.chunk(mesh.size(), kind.dim)[_here()] if kind.dim is not None else whole
            setattr(self, name, nn.Parameter(part.contiguous().clone()))
            typed(getattr(self, name), **{axis: kind})


def _mlp(mesh: Any) -> Held:
    tensors = {"x": (random(0, 4, 8), I), "g": (random(1, 8), I)}
    tensors |= {"w1": (random(2, 16, 8), S(0)), "w2": (random(3, 8, 16), S(1))}
    return Held(mesh, **tensors)


def tensor_parallel(fault: str = "") -> Callable[..., Any]:
    def step(m: Held) -> torch.Tensor:
        h = m.x * m.g
        e = h if fault == "no copy" else copy_in(h)
        p = F.linear(F.gelu(F.linear(e, m.w1)), m.w2)
        y = p if fault == "no reduce" else reduce_out(p, total if fault == "to R" else torch.clone)
        y = reduce_out(y) if fault == "twice" else y
        loss = ((y + h) ** 2).sum()
        loss.backward()
        return loss

    return step


def sequence_parallel(fault: str = "") -> Callable[..., Any]:
    def step(m: Held) -> torch.Tensor:
        h = m.x * m.g
        y = scatter(F.linear(F.gelu(F.linear(gather(h), m.w1)), m.w2))
        loss = typed(((y + m.x) ** 2).sum(), tp=P)
        loss.backward()
        if fault != "no hook":
            dist.all_reduce(m.g.grad)
        return loss

    return step


def _sequence(mesh: Any) -> Held:
    tensors = {"x": (random(0, 4, 8), S(0)), "g": (random(1, 8), R)}
    tensors |= {"w1": (random(2, 16, 8), S(0)), "w2": (random(3, 8, 16), S(1))}
    return Held(mesh, **tensors)


def data_parallel(fault: str = "") -> Callable[..., Any]:
    def step(m: Held, x: torch.Tensor) -> torch.Tensor:
        e = F.linear(F.gelu(F.linear(x, m.w)), m.v) ** 2
        loss = e.mean()
        if fault != "unsaid":
            loss = typed(loss, dp=P("mean"))
        loss.backward()
        for name, p in m.named_parameters():
            if fault == "none" or (fault == "one left" and name == "v"):
                continue
            dist.all_reduce(p.grad)
            p.grad /= 1 if fault == "sum" else dist.get_world_size()
        return loss

    return step


def _batch(mesh: Any) -> Any:
    held = Held(mesh, w=(random(1, 3, 4), R), v=(random(2, 3, 3), R))
    return held, random(0, 8, 4).chunk(mesh.size())[_here()].clone()


def order(fault: str = "") -> Callable[..., Any]:
    def step(m: Held) -> torch.Tensor:
        names = ["b", "a"] if fault and _here() == 1 else ["a", "b"]
        sums = {name: reduce_out(getattr(m, name).sum(1)) for name in names}
        loss = (sums["a"] ** 3).sum() + (sums["b"] ** 2).sum()
        loss.backward()
        return loss

    return step


def clipping(fault: str = "") -> Callable[..., Any]:
    def step(m: Held, x: torch.Tensor) -> torch.Tensor:
        h = F.linear(copy_in(x * m.b), m.w)
        loss = reduce_out((h**2).sum())
        loss.backward()
        with torch.no_grad():
            shard, whole = (m.w.grad**2).sum(), (m.b.grad**2).sum()
            norm = torch.sqrt((shard if fault else total(shard)) + whole)
            for p in m.parameters():
                p.grad = p.grad * (1.0 / norm)
        return loss

    return step


def dropout(fault: str = "") -> Callable[..., Any]:
    def step(m: Held) -> torch.Tensor:
        torch.manual_seed(77 + (_here() if fault else 0))
        h = F.dropout(m.x * m.g, 0.5)
        y = reduce_out(F.linear(F.gelu(F.linear(copy_in(h), m.w1)), m.w2))
        loss = ((y + h) ** 2).sum()
        loss.backward()
        return loss

    return step


def _clip(mesh: Any) -> Any:
    held = Held(mesh, b=(random(1, 8), I), w=(random(2, 8, 8), S(0)))
    return held, random(0, 4, 8)


def _two(mesh: Any) -> Held:
    return Held(mesh, a=(random(0, 4, 8), S(1)), b=(random(1, 4, 8), S(1)))


# name -> (step of a fault, what makes the arguments, mesh, faults)
CASES: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], dict[str, int], list[str]]] = {
    "tensor_parallel": (
        tensor_parallel, _mlp, {"tp": 2}, ["no copy", "no reduce", "to R", "twice"],
    ),
    "sequence_parallel": (sequence_parallel, _sequence, {"tp": 2}, ["no hook"]),
    "data_parallel": (data_parallel, _batch, {"dp": 2}, ["one left", "unsaid", "sum"]),
    "order": (order, _two, {"tp": 2}, ["swapped"]),
    "clipping": (clipping, _clip, {"tp": 2}, ["own norm"]),
    "dropout": (dropout, _mlp, {"tp": 2}, ["own seed"]),
}  # fmt: skip
