"""Convolutions and pooling."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind, shard
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.matmul import add_to
from lockstep.checker.inference.rules.mixing import after_error, nonlinear
from lockstep.checker.inference.rules.norms import summed_over_rows
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.views import lost


@rule("convolution", "_convolution")
def _convolution(ctx: Context) -> Kind:
    x, weight = ctx.operands[0], ctx.operands[1]
    made = _product(ctx, x, weight)
    bias = ctx.get("bias")
    if bias is None:
        return made
    if made.tag == "S" and made.dim == 1 and bias.kind.tag == "S":
        return made
    return add_to(ctx, Operand(bias.node, bias.kind, (*bias.shape, 1, 1)), made)


def _product(ctx: Context, x: Operand, weight: Operand) -> Kind:
    a, b = x.kind, weight.kind
    if "?" in a.tag + b.tag:
        return UNKNOWN
    if "P" in a.tag + b.tag:
        partial, other = (x, weight) if a.tag == "P" else (weight, x)
        if other.kind.same:
            return partial.kind
        if other.kind.tag == "V":
            return UNKNOWN
        ctx.fault(
            "LS502",
            "a convolution of a partial sum with a shard or a partial",
            "the product of sums is not the sum of the ranks' products",
            partial,
            other,
            want="R or I",
        )
        return after_error(ctx, EQUAL)
    if a.same and b.same:
        return replace(EQUAL, power=max(a.power, b.power))
    plain = ctx["groups"] == 1
    if a.tag == "S" and a.dim == 0 and b.same:
        return a
    if a.same and b.tag == "S" and plain and b.dim == (1 if ctx["transposed"] else 0):
        return shard(1, b.before)
    inner = 0 if ctx["transposed"] else 1
    if a.tag == b.tag == "S" and a.dim == 1 and b.dim == inner and plain:
        return PARTIAL if a.before == b.before else VARYING
    return VARYING


@rule("convolution_backward")
def _convolution_backward(ctx: Context) -> list[Kind]:
    grad, x, weight = ctx.operands[:3]
    g, a, b = grad.kind, x.kind, weight.kind
    if any(o.kind.tag == "?" for o in ctx.operands):
        return [UNKNOWN] * 3
    if g.tag in "EPZ" and a.same and b.same:
        made = replace(g, flat=False)
        return [made, made, made]
    if g.tag == "S" and g.dim == 0 and a.tag == "S" and a.dim == 0 and b.same:
        return [a, replace(PARTIAL, power=g.power), replace(PARTIAL, power=g.power)]
    plain = ctx["groups"] == 1 and not ctx["transposed"]
    if plain and g.tag == "S" and g.dim == 1 and a.same and b.tag == "S" and b.dim == 0:
        return [replace(PARTIAL, power=g.power), b, shard(0, b.before)]
    if plain and g.same and a.tag == "S" and a.dim == 1 and b.tag == "S" and b.dim == 1:
        return [a, b, replace(EQUAL, power=g.power)]
    if g.tag == "P":
        return [UNKNOWN] * 3
    bias = summed_over_rows(grad, grad) if g.tag == "S" and g.dim != 1 else VARYING
    return [VARYING, VARYING, bias]


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "upsample_nearest2d")
def _average_pool(ctx: Context) -> Kind:
    return _local(ctx.operands[0])


@rule("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", linear=False)
def _max_pool(ctx: Context) -> list[Kind]:
    first = ctx.operands[0]
    kind = nonlinear(ctx, [first]) if first.kind.tag == "P" else _local(first)
    return [kind, EQUAL if kind.tag == "Z" else kind]  # of what is zero, too, some place is told


def _local(x: Operand) -> Kind:
    """Windows reach over the last two dimensions: a shard of those loses its place."""
    return lost(x.kind) if x.kind.tag == "S" and x.kind.dim >= 2 else x.kind


@rule(
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
    "max_pool2d_with_indices_backward",
    "upsample_nearest2d_backward",
)
def _pool_backward(ctx: Context) -> Kind:
    grad, rest = ctx.operands[0], ctx.operands[1:]
    if any(o.kind.tag == "?" for o in ctx.operands):
        return UNKNOWN
    if grad.kind.tag in "EPZ" and all(o.kind.same for o in rest):
        return replace(grad.kind, flat=False)
    if grad.kind.tag == "S" and all(o.kind == grad.kind or o.kind.same for o in rest):
        return _local(grad)
    return UNKNOWN if grad.kind.tag == "P" else VARYING
