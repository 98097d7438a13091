"""Fully-sharded data parallelism: each rank keeps S(0) of a parameter, and gathers it to use it.

    forward    shard S(0) -> all_gather -> whole R
    backward   gradient P -> reduce_scatter -> S(0)

The gradient that the optimizer reads is the shard's own. A dimension that the ranks do not divide
is padded: the last ranks hold zeros at the end, whose gradient is zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from lockstep import _compat
from lockstep.parallel.become import read_through
from lockstep.parallel.placement import shard
from lockstep.parallel.recompute import recompute
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.signature import type_parameters
from lockstep.spmd.typed_collectives import all_gather, reduce_scatter
from lockstep.spmd.types import P, R, S


@dataclass(frozen=True, eq=False)
class Gathered:
    """How a shard is read: S(0) -> R.

    Args:
        axis: the mesh axis that it is cut along.
        rows: of the whole, without padding.
        dtype: what to gather it in, and to compute in; None for its own.
        anew: whether to gather at each use within `gathered_once`, too.
    """

    axis: str
    rows: int
    dtype: torch.dtype | None = None
    anew: bool = False

    def __call__(self, own: Tensor) -> Tensor:
        once = _once.get()
        if once is None or self.anew:
            return self.gather(own)
        whole: Tensor = _Use.apply(own, self, once)
        return whole

    def gather(self, own: Tensor) -> Tensor:
        """Return the whole; its gradient is reduced to the shard's."""
        if self.dtype in (None, own.dtype):
            whole = all_gather(own, self.axis, src=S(0), dst=R)
        else:
            whole = _GatheredIn.apply(own, self.axis, self.dtype)
        return whole if len(whole) == self.rows else whole[: self.rows]


class _GatheredIn(torch.autograd.Function):
    """Gather in a narrow dtype; its gradient is added up in the parameter's own."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, axis: str, dtype: torch.dtype) -> Tensor:
        ctx.axis, ctx.dtype = axis, own.dtype
        return all_gather(own.to(dtype), axis, src=S(0), dst=R)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return reduce_scatter(grad.to(ctx.dtype), ctx.axis, src=P, dst=S(0)), None, None


@dataclass
class Once:
    """What is gathered once: the whole ones, and what the gradients of their uses add up to.

    Args:
        last: whether the backward that runs is the last one of what it goes through: its gradients
            are reduced, with all that came before.
    """

    last: bool = False
    wholes: dict[Gathered, Tensor] = field(default_factory=dict)
    grads: dict[Gathered, Tensor] = field(default_factory=dict)


@contextlib.contextmanager
def gathered_once() -> Iterator[Once]:
    """Inside, gather each shard where it is used first, and reduce its gradient once, when told so.

    For micro-batches that take turns. The whole ones and their gradients, which add up in the
    parameter's own dtype, are held meanwhile. What is sharded with `regather` is gathered and
    reduced at each use as elsewhere.
    """
    once = Once()
    token = _once.set(once)
    try:
        yield once
    finally:
        _once.reset(token)
    assert not once.grads, "a backward that was the last one was not said to be"


class _Use(torch.autograd.Function):
    """A use of a shard that is gathered once: S(0) -> R."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, how: Gathered, once: Once) -> Tensor:
        ctx.how, ctx.once, ctx.dtype, ctx.rows = how, once, own.dtype, len(own)
        if how not in once.wholes:
            once.wholes[how] = how.gather(own)
        whole = once.wholes[how]
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        how, grads, grad = ctx.how, ctx.once.grads, grad.to(ctx.dtype)
        grads[how] = grads[how] + grad if how in grads else grad
        if not ctx.once.last:
            return None, None, None
        total = grads.pop(how)
        missing = ctx.rows * axis_named(how.axis).size - len(total)
        if missing:
            total = torch.cat([total, total.new_zeros(missing, *total.shape[1:])])
        return reduce_scatter(total, how.axis, src=P, dst=S(0)), None, None


_once: ContextVar[Once | None] = ContextVar("lockstep_gathered_once", default=None)


def fully_shard(
    model: nn.Module,
    axis: str,
    *,
    dtype: torch.dtype | None = None,
    regather: bool = False,
    only: str = "*",
) -> None:
    """Cut the parameters of a placed model along an axis, and gather each where it is used.

    Along that axis data differ; a loss is the rank's share of a sum. Apply it after all else that
    a plan does.

    Args:
        model: changed in place; placed by `parallel.place`.
        axis: a mesh axis along which no parameter is cut yet.
        dtype: what to gather and compute in, such as bfloat16; gradients are reduced in the
            parameters' own.
        regather: gather matrices anew in the backward, in place of keeping them.
        only: a pattern of the names to cut.

    Raises:
        UsageError: an unknown axis, a model that is not placed, a pattern that matches nothing.
    """
    type_parameters(model, {only: {axis: S(0)}})
    reads: dict[int, Gathered] = {}
    for path, module in model.named_modules():
        used_again = False
        for name, parameter in _compat.module_tables(module)[0].items():
            whole = f"{path}.{name}".lstrip(".")
            if parameter is None or not fnmatchcase(whole, only):
                continue
            if id(parameter) not in reads:
                reads[id(parameter)] = Gathered(axis, parameter.shape[0], dtype, regather)
                shard(parameter, whole, axis, 0, pad=True)
            read_through(module, name, reads[id(parameter)])
            used_again |= parameter.dim() > 1 and not isinstance(module, nn.Embedding)
        if regather and used_again:
            recompute(module)
