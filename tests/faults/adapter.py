"""The neutral object of the fault cases, written with Lockstep.

A case is one program text against an object `c`. Here each method is the typed collective of the
same meaning, and `leaf` and `ann` are claims.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import lockstep as ls
from lockstep import I, P, R, S, V

LETTERS = {"I": I, "P": P, "R": R, "V": V}


def type_of(letter: str) -> Any:
    """Return the type that a case's letters mean: "S1" is a shard of dimension 1."""
    return S(int(letter[1:])) if letter[0] == "S" else LETTERS[letter]


class Ours(importlib.import_module("_kit").Base):  # type: ignore[misc]
    """One rank's object. Its groups are those of the mesh that `make` is given."""

    def __init__(self, mesh: Any) -> None:
        names = mesh.mesh_dim_names
        super().__init__(dict(zip(names, mesh.shape, strict=True)), mesh.get_rank(), {})
        self.groups = {name: mesh.get_group(name) for name in names}

    # -- claims
    def leaf(self, t: torch.Tensor, grad: bool = True, **types: str) -> torch.Tensor:
        t = t.detach().clone()
        if grad and t.is_floating_point():
            t = torch.nn.Parameter(t)
        return self.ann(t, **types)

    def ann(self, t: torch.Tensor, **types: str) -> torch.Tensor:
        return ls.typed(t, **{axis: type_of(letter) for axis, letter in types.items()})

    def v2p(self, x: torch.Tensor, a: str) -> torch.Tensor:
        return ls.typed(x, **{a: P})

    # -- typed collectives
    def i2r(self, x: torch.Tensor, a: str) -> torch.Tensor:
        return ls.convert(x, a, src=I, dst=R)

    def r2p(self, x: torch.Tensor, a: str) -> torch.Tensor:
        return ls.convert(x, a, src=R, dst=P)

    def all_reduce(self, x: torch.Tensor, a: str, dst: str) -> torch.Tensor:
        return ls.all_reduce(x, a, src=P, dst=type_of(dst))

    def all_gather(self, x: torch.Tensor, a: str, dim: int, dst: str) -> torch.Tensor:
        return ls.all_gather(x, a, src=S(dim), dst=type_of(dst))

    def reduce_scatter(self, x: torch.Tensor, a: str, dim: int) -> torch.Tensor:
        return ls.reduce_scatter(x, a, src=P, dst=S(dim))

    def shard(self, x: torch.Tensor, a: str, dim: int, src: str) -> torch.Tensor:
        return ls.convert(x, a, src=type_of(src), dst=S(dim))

    def all_to_all(self, x: torch.Tensor, a: str, split: int, concat: int) -> torch.Tensor:
        return ls.all_to_all(x, a, src=S(concat), dst=S(split))

    def all_to_all_v(self, x: torch.Tensor, a: str) -> torch.Tensor:
        return ls.all_to_all(x, a, src=V, dst=V)

    # -- after the backward, with torch's own collectives
    def grad_sum(self, p: torch.Tensor, *axes: str) -> torch.Tensor:
        g = p.grad.clone()
        for a in axes:
            dist.all_reduce(g, group=self.group(a))
        return g

    def set_grad(self, p: torch.Tensor, g: torch.Tensor) -> None:
        p.grad = g

    def raw_sum(self, t: torch.Tensor, a: str) -> torch.Tensor:
        y = t.detach().clone()
        dist.all_reduce(y, group=self.group(a))
        return y

    def raw_max(self, t: torch.Tensor, a: str) -> torch.Tensor:
        y = t.detach().clone()
        dist.all_reduce(y, op=dist.ReduceOp.MAX, group=self.group(a))
        return y


def program(case: Any, fault: bool) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    """Return a case's step, and what builds its arguments on a rank of a mesh."""
    held: dict[str, Any] = {}

    def make(mesh: Any) -> tuple[Any, ...]:
        c = held["c"] = Ours(mesh)
        leaves, model = case.setup(c), torch.nn.Module()
        held["rest"] = {k: t for k, t in leaves.items() if not isinstance(t, torch.Tensor)}
        for name, t in leaves.items():
            if isinstance(t, torch.nn.Parameter):
                model.register_parameter(name, t)
        rest = {k: t for k, t in leaves.items() if isinstance(t, torch.Tensor)}
        return model, {k: t for k, t in rest.items() if not t.requires_grad}

    def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> Any:
        c, s = held["c"], {**held["rest"], **dict(model.named_parameters()), **batch}
        loss = case.loss(c, s, fault)
        loss.backward()
        for name, (value, _) in case.finish(c, s, fault).items():
            if name in s and s[name].requires_grad:
                s[name].grad = value.view(s[name].shape)  # what an optimizer would read
        return loss.detach()

    return step, make
