"""Every row of the table of typed collectives, and what it must give, as plain algebra on lists.

A list holds one tensor for each rank. The gradient that a row must give is autograd's, of one
scalar of the whole job, through the row's forward as it is written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import lockstep as ls
from lockstep import I, P, R, S, V
from lockstep.spmd.types import Type

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One row.

    Args:
        world: from the ranks' inputs to the ranks' outputs.
        shape: of the input where it is whole, and of all the ranks' together for S(d).
        kwargs: for the call; functions are called with the rank and the number of ranks.
    """

    verb: str
    src: Type
    dst: Type
    world: Callable[[Tensors], Tensors]
    shape: tuple[int, ...] = (4, 8)
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        more = [f"{k}={v}" for k, v in self.kwargs.items() if not callable(v)]
        size = "x".join(map(str, self.shape))
        return "-".join([self.verb, self.src, self.dst, *more, size])

    def call(self, x: torch.Tensor, axis: str, rank: int, ranks: int, **more: Any) -> Any:
        """Call the typed collective itself."""
        made = {k: v(rank, ranks) if callable(v) else v for k, v in self.kwargs.items()}
        return getattr(ls, self.verb)(x, axis, src=self.src, dst=self.dst, **made, **more)

    def inputs(self, ranks: int) -> Tensors:
        """Small whole numbers: their sums are exact in any order."""
        torch.manual_seed(len(self.name))
        if self.src.dim is not None:
            return list(_draw(*self.shape).tensor_split(ranks, self.src.dim))
        if self.src.kind in "RI":
            return same(_draw(*self.shape), range(ranks))
        return [_draw(*self.shape) for _ in range(ranks)]

    def cotangents(self, outputs: Tensors) -> Tensors:
        """One gradient for each rank's output, of the type that goes with it: I and R are whole."""
        torch.manual_seed(len(self.name) + 1)
        if self.dst.kind in "IP":
            return same(_draw(*outputs[0].shape), outputs)
        return [_draw(*y.shape) for y in outputs]

    def gold(self, xs: Tensors, gs: Tensors) -> Tensors:
        """What the gradients of the inputs must be; of an R, what they must add up to.

        The scalar counts an invariant output once, and every other rank's output by itself.
        """
        whole = self.src.kind in "RI"
        leaves = [xs[0].clone().requires_grad_()] if whole else [_leaf(x) for x in xs]
        ys = self.world(leaves * len(xs) if whole else leaves)
        pairs = list(zip(ys, gs, strict=True))[: 1 if self.dst.kind == "I" else None]
        scalar = sum((y * g).sum() for y, g in pairs)
        grads = torch.autograd.grad(scalar, leaves, allow_unused=True)
        grads = [
            torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)
        ]
        return grads * len(xs) if whole else grads

    def holds(self, grads: Tensors, gold: Tensors) -> bool:
        """Whether the ranks' gradients are what they must be."""
        if self.src.kind == "R":
            return torch.equal(total(grads), gold[0])
        return all(map(torch.equal, grads, gold))


def _draw(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape).double() * 4  # by up to 4 ranks, means are exact


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.clone().requires_grad_()


def total(xs: Tensors) -> torch.Tensor:
    return torch.stack(list(xs)).sum(0)


def same(whole: torch.Tensor, xs: Any) -> Tensors:
    return [whole for _ in xs]


def only(xs: Tensors, root: int) -> Tensors:
    return [x if rank == root else torch.zeros_like(x) for rank, x in enumerate(xs)]


def mean(xs: Tensors) -> Tensors:
    return same(total(xs) / len(xs), xs)


def split(whole: torch.Tensor, xs: Tensors, dim: int) -> Tensors:
    return list(whole.tensor_split(len(xs), dim))


def padded(xs: Tensors, dim: int) -> Tensors:
    zeros = [torch.zeros_like(x) for x in xs]
    return [torch.cat([*zeros[:r], x, *zeros[r + 1 :]], dim) for r, x in enumerate(xs)]


def exchanged(xs: Tensors, cut: int, join: int) -> Tensors:
    parts = [x.tensor_split(len(xs), cut) for x in xs]
    return [torch.cat([part[r] for part in parts], join) for r in range(len(xs))]


def rows(rank: int, ranks: int) -> list[int]:
    """Rows that a rank sends to each, and as many come back; 6 in all on 2 ranks, 6 on 4."""
    return [(rank + other) % ranks * (6 // (ranks * (ranks - 1) // 2)) for other in range(ranks)]


def by_rows(xs: Tensors) -> Tensors:
    parts = [x.split(rows(rank, len(xs))) for rank, x in enumerate(xs)]
    return [torch.cat([part[r] for part in parts]) for r in range(len(xs))]


def _sharded(dim: int, extent: int) -> list[Case]:
    """The rows that cut or join a dimension; an extent of 7 is uneven."""
    shape = tuple(extent if d == dim else 2 for d in range(3))
    s = S(dim)
    told: dict[str, Any] = {} if extent == 8 else {"sizes": extent}
    return [
        Case("all_gather", s, R, lambda xs: same(torch.cat(xs, dim), xs), shape, told),
        Case("all_gather", s, I, lambda xs: same(torch.cat(xs, dim), xs), shape, told),
        Case("reduce_scatter", P, s, lambda xs: split(total(xs), xs, dim), shape),
        Case("convert", R, s, lambda xs: split(xs[0], xs, dim), shape),
        Case("convert", I, s, lambda xs: split(xs[0], xs, dim), shape),
        Case("convert", s, P, lambda xs: padded(xs, dim), shape, told),
    ]


def _resharded(src: int, dst: int) -> list[Case]:
    def world(xs: Tensors) -> Tensors:
        return exchanged(xs, dst, src)

    even, uneven = ((4, 8, 4), {}), ((5, 7, 6), {"src_sizes": (5, 7, 6)[src]})
    return [Case("all_to_all", S(src), S(dst), world, *how) for how in (even, uneven)]


ROWS = [
    Case("all_reduce", P, R, lambda xs: same(total(xs), xs)),
    Case("all_reduce", P, I, lambda xs: same(total(xs), xs)),
    Case("all_reduce", P, R, mean, kwargs={"op": "avg"}),
    Case("all_reduce", P, I, mean, kwargs={"op": "avg"}),
    Case("all_reduce", P("mean"), R, mean),
    Case("all_reduce", P("mean"), I, mean),
    Case("broadcast", V, R, lambda xs: same(xs[1], xs), kwargs={"root": 1}),
    Case("broadcast", V, I, lambda xs: same(xs[1], xs), kwargs={"root": 1}),
    Case("all_gather", V, R, lambda xs: same(torch.cat(xs, 1), xs), kwargs={"dim": 1}),
    Case("all_gather", V, I, lambda xs: same(torch.cat(xs, 0), xs)),
    Case("reduce_scatter", P, V, lambda xs: split(total(xs), xs, 1), kwargs={"dim": -1}),
    Case("reduce_scatter", P("mean"), S(1), lambda xs: split(total(xs) / len(xs), xs, 1)),
    Case("all_to_all", V, V, lambda xs: exchanged(xs, 0, 0)),
    Case("all_to_all", V, V, lambda xs: exchanged(xs, 1, 1), kwargs={"dim": 1}),
    Case("convert", I, R, list),
    Case("convert", R, I, list, kwargs={"expert": True}),
    Case("convert", R, V, lambda xs: split(xs[0], xs, 1), kwargs={"dim": 1}),
    Case("convert", I, V, lambda xs: split(xs[0], xs, 0)),
    Case("convert", R, P, lambda xs: only(xs, 0)),
    Case("convert", I, P, lambda xs: only(xs, 0)),
    Case("convert", V, P, lambda xs: padded(xs, 1), kwargs={"dim": 1}),
    Case("reinterpret", R, V, list),
    Case("reinterpret", V, P, list),
    Case("reinterpret", V, P("mean"), list),
    Case("reinterpret", V, S(1), list),
    Case("reinterpret", S(1), V, list),
    Case("reinterpret", R, P, list, kwargs={"expert": True}),
    *(case for dim in range(3) for case in _sharded(dim, 8)),
    *(_resharded(src, dst)[0] for src in range(3) for dst in range(3) if src != dst),
]
UNEVEN = [
    *(case for dim in range(3) for case in _sharded(dim, 7)),
    *(_resharded(src, dst)[1] for src in range(3) for dst in range(3) if src != dst),
    Case("all_to_all", V, V, by_rows, (6, 2), kwargs={"input_splits": rows, "output_splits": rows}),
]
