"""Sums, means, extremes and norms: over a sharded dimension they give one rank's term."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import PARTIAL, VARYING, Kind
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.mixing import nonlinear
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.views import placed


def reduced_dims(ctx: Context, first: Operand) -> list[int]:
    """Which dimensions go, counted from the front."""
    given = ctx["dim"]
    if given is None or given == []:
        return list(range(first.ndim))
    dims = [given] if isinstance(given, int) else given
    return [d % max(first.ndim, 1) for d in dims]


def kept(ctx: Context, kind: Kind, dims: list[int]) -> Kind:
    """A shard whose own dimension stays."""
    if ctx["keepdim"]:
        return kind
    return placed(kind, kind.dim - sum(d < kind.dim for d in dims), kind.before)


@rule("sum", "nansum")
def _sum(ctx: Context) -> Kind:
    return _added_up(ctx, 0)


@rule("mean")
def _mean(ctx: Context) -> Kind:
    return _added_up(ctx, 1)


def _added_up(ctx: Context, power: int) -> Kind:
    first = ctx.operands[0]
    kind = first.kind
    dims = reduced_dims(ctx, first)
    if kind.tag != "S":
        return replace(kind, note="") if kind.note in ("gathered", "mask", "lookup") else kind
    if kind.dim not in dims:
        return kept(ctx, kind, dims)
    uneven = len({tuple(p.meta["val"].shape) for p in _sources(ctx)}) > 1
    if power and uneven:
        return VARYING
    return replace(PARTIAL, power=kind.power + power)


def _sources(ctx: Context) -> list:
    return [peer.args[0] for peer in ctx.peers]


@rule("logsumexp", linear=False)
def _logsumexp(ctx: Context) -> Kind:
    return extreme(ctx, ctx.operands[0])


@rule("amax", "amin", "argmax", "argmin", "all", "any", "prod", linear=False)
def _extreme(ctx: Context) -> Kind:
    return extreme(ctx, ctx.operands[0])


@rule("max", "min", "median", "nanmedian", "mode", "kthvalue", linear=False)
def _extreme_pair(ctx: Context) -> Kind | list[Kind]:
    if ctx.get("other") is not None:
        return nonlinear(ctx)
    kind = extreme(ctx, ctx.operands[0])
    return [kind, kind] if isinstance(ctx.node.meta["val"], (list, tuple)) else kind


def extreme(ctx: Context, first: Operand) -> Kind:
    """A reduction that is not linear: over a sharded dimension each rank has its own."""
    if first.kind.tag != "S":
        return nonlinear(ctx, [first])
    dims = reduced_dims(ctx, first)
    return VARYING if first.kind.dim in dims else kept(ctx, first.kind, dims)


@rule("linalg_vector_norm", "norm", "std", "var", linear=False)
def _norm(ctx: Context) -> Kind:
    return extreme(ctx, ctx.operands[0])


@rule("var_mean", "std_mean", linear=False)
def _var_mean(ctx: Context) -> list[Kind]:
    kind = extreme(ctx, ctx.operands[0])
    return [kind, kind]


@rule("_foreach_norm", linear=False)
def _foreach_norm(ctx: Context) -> list[Kind]:
    return [replace(VARYING) if o.kind.tag == "S" else nonlinear(ctx, [o]) for o in ctx.operands]


@rule("topk", "sort", linear=False)
def _ordered(ctx: Context) -> list[Kind]:
    first = ctx.operands[0]
    dim = (ctx["dim"] if ctx["dim"] is not None else -1) % max(first.ndim, 1)
    if first.kind.tag != "S":
        return [nonlinear(ctx, [first])] * 2
    kind = VARYING if first.kind.dim == dim else first.kind
    return [kind, kind]


@rule("argsort", "cummax", "cumprod", "logcumsumexp", linear=False)
def _along(ctx: Context) -> Kind | list[Kind]:
    first = ctx.operands[0]
    dim = (ctx["dim"] if ctx["dim"] is not None else -1) % max(first.ndim, 1)
    kind = nonlinear(ctx, [first]) if first.kind.tag != "S" else first.kind
    kind = VARYING if first.kind.tag == "S" and first.kind.dim == dim else kind
    return [kind, kind] if ctx.op == "cummax" else kind


@rule("value_selecting_reduction_backward")
def _value_backward(ctx: Context) -> Kind:
    grad, index = ctx.operands[0], ctx.operands[1]
    if index.kind.same and grad.kind.tag in "EZP":
        return grad.kind
    same = grad.kind == index.kind and grad.kind.tag == "S"
    if not same:
        return VARYING if grad.kind.tag != "P" else replace(PARTIAL, note="echo")
    dim = ctx["dim"] % len(ctx.shape)
    shift = not ctx["keepdim"] and dim <= grad.kind.dim
    return placed(grad.kind, grad.kind.dim + shift, grad.kind.before)
