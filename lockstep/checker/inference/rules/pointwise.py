"""Element by element: casts, arithmetic, activations, comparisons, masks, and their backwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind
from lockstep.checker.inference.rules.context import Context, dtype_of
from lockstep.checker.inference.rules.mixing import added, nonlinear, scaled
from lockstep.checker.inference.rules.registry import rule

NONLINEAR = (
    "abs acos acosh addcdiv asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or "
    "bitwise_xor ceil celu clamp clamp_max clamp_min copysign cos cosh digamma elu eq erf erfc "
    "erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gt hardsigmoid "
    "hardswish hardtanh hypot isfinite isinf isnan ldexp le leaky_relu lgamma log log10 log1p log2 "
    "logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit "
    "lt maximum minimum mish ne nextafter pow prelu reciprocal relu relu6 remainder round rsqrt "
    "selu sgn sigmoid sign silu sin sinc sinh softplus sqrt square tan tanh threshold trunc "
    "xlogy nan_to_num heaviside isclose bitwise_left_shift bitwise_right_shift logit polygamma"
)
# The gradient comes first, and the result is linear in it.
BACKWARDS = (
    "gelu_backward silu_backward tanh_backward sigmoid_backward threshold_backward elu_backward "
    "hardswish_backward hardsigmoid_backward hardtanh_backward leaky_relu_backward mish_backward "
    "softplus_backward log_sigmoid_backward logit_backward"
)
SAME = (
    "alias alias_copy detach clone _to_copy contiguous lift_fresh lift_fresh_copy lift "
    "_conj conj real imag view_as_real view_as_complex to positive resolve_conj "
    "resolve_neg _conj_physical _local_scalar_dense neg"
)


@rule(*dict.fromkeys(NONLINEAR.split()), linear=False)
def _nonlinear(ctx: Context) -> Kind:
    if ctx.op == "pow" and ctx["exponent"] == 1:
        return ctx.operands[0].kind
    return VARYING if ctx.differs else nonlinear(ctx)


@rule("glu", linear=False)
def _glu(ctx: Context) -> Kind:
    """One half of a dimension gates the other: each rank's halves are no halves of the whole."""
    first = ctx.operands[0]
    lost = first.kind.tag == "S" and first.kind.dim == ctx["dim"] % first.ndim
    return VARYING if lost else nonlinear(ctx)


@rule("log_sigmoid_forward", linear=False)
def _log_sigmoid(ctx: Context) -> list[Kind]:
    return [nonlinear(ctx)] * 2


@rule(*BACKWARDS.split())
def _backward(ctx: Context) -> Kind:
    return scaled(ctx, ctx.operands, linear_in=0)


@rule(*SAME.split())
def _same(ctx: Context) -> Kind:
    kind = ctx.operands[0].kind
    if ctx.op in ("view_as_real", "view_as_complex", "_local_scalar_dense") or kind.tag != "P":
        return kind
    value = dtype_of(ctx.node)
    if value is not None and not (value.is_floating_point or value.is_complex):
        return nonlinear(ctx)
    return kind


@rule("add", "sub", "rsub")
def _add(ctx: Context) -> Kind:
    if ctx.differs:
        return UNKNOWN if any(o.kind.tag == "P" for o in ctx.operands) else _varied(ctx)
    numbers = [ctx[name] for name in ("self", "other")]
    constant = any(isinstance(n, (int, float)) and n != 0 for n in numbers)
    order = _moved_order(ctx)
    return order or added(ctx, ctx.operands, constant)


@rule("addcmul", "lerp")
def _multi(ctx: Context) -> Kind:
    if any(o.kind.tag == "P" for o in ctx.operands):
        return UNKNOWN
    return VARYING if ctx.differs else nonlinear(ctx)


@rule("mul")
def _mul(ctx: Context) -> Kind:
    order = _moved_order(ctx)
    if order:
        return order
    return _kept(ctx) if ctx.differs else scaled(ctx, ctx.operands)


def _kept(ctx: Context) -> Kind:
    """A factor that is 1 on one rank and 0 on the others keeps the value on one rank: P."""
    kind = ctx.operands[0].kind
    factors = sorted(map(float, ctx.constants("other")))
    if kind.tag == "E" and factors == [0.0] * (len(factors) - 1) + [1.0]:
        return PARTIAL
    return UNKNOWN if kind.tag == "P" else _varied(ctx)


def _varied(ctx: Context) -> Kind:
    """What a constant that differs makes of a value; a shard keeps its place."""
    kind = ctx.operands[0].kind
    return kind if kind.tag in "S?" else VARYING


def divides_by_ranks(ctx: Context) -> bool:
    """Whether a node divides by the number of ranks: a pending mean becomes a pending sum."""
    other = ctx["other"]
    if not isinstance(other, (int, float)):
        return False
    return (ctx.op == "div" and other == ctx.size) or (
        ctx.op == "mul" and abs(other * ctx.size - 1) < 1e-9
    )


@rule("div", "true_divide")
def _div(ctx: Context) -> Kind:
    if ctx.differs:
        return _varied(ctx)
    if ctx["rounding_mode"] is not None:
        return nonlinear(ctx)
    order = _moved_order(ctx)
    if order:
        return order
    divisor = ctx.get("other")
    if divisor is not None and divisor.kind.tag == "P" and divisor.kind.note != "echo":
        whole = ctx.operands[0].kind.tag != "P"
        ctx.fault(
            "LS502",
            "division by a partial sum",
            "each rank divides by its own term, where the sum over the ranks is meant"
            if not whole
            else "the sum over the ranks is what is meant to divide",
            divisor,
            ctx.operands[0],
            want="R or I",
        )
        return ctx.operands[0].kind
    return scaled(ctx, ctx.operands, linear_in=0 if divisor is not None else None)


@rule("where")
def _where(ctx: Context) -> Kind:
    if ctx.differs:
        return UNKNOWN if _has_partial(ctx) else VARYING
    branches = [ctx[name] for name in ("self", "other")]
    zero = any(n == 0 for n in branches if isinstance(n, (int, float)))
    return _selected(ctx, ctx.operands[0].kind, ctx.operands[1:], zero)


@rule("masked_fill")
def _masked_fill(ctx: Context) -> Kind:
    fill = ctx.get("value")
    zero = ctx["value"] == 0 if fill is None else fill.kind.tag == "Z"
    mask = ctx.operands[1].kind
    return _selected(ctx, mask, [o for i, o in enumerate(ctx.operands) if i != 1], zero)


def _selected(ctx: Context, mask: Kind, branches: list[Any], zero: bool) -> Kind:
    """One of several by a mask; `zero` says that a branch is the number zero."""
    zero = zero or any(o.kind.tag == "Z" for o in branches)
    if zero and any(o.kind.note == "lookup" for o in branches) and mask.varies:
        return PARTIAL
    if not _has_partial(ctx):
        return nonlinear(ctx)
    live = [o for o in branches if o.kind.tag != "Z"]
    if not mask.same:
        return UNKNOWN
    if all(o.kind.tag == "P" for o in live) and (zero or len(branches) == 2):
        return live[0].kind
    return nonlinear(ctx)


@rule("tril", "triu")
def _band(ctx: Context) -> Kind:
    kind = ctx.operands[0].kind
    inside = kind.tag == "S" and kind.dim >= ctx.operands[0].ndim - 2
    return VARYING if inside else replace(kind, flat=False)


@rule("cumsum")
def _cumsum(ctx: Context) -> Kind:
    first = ctx.operands[0]
    along = ctx["dim"] % max(first.ndim, 1)
    lost = first.kind.tag == "S" and first.kind.dim == along
    return VARYING if lost else replace(first.kind, flat=False)


@rule("flip", "roll")
def _reordered(ctx: Context) -> Kind:
    first = ctx.operands[0]
    dims = [d % first.ndim for d in ctx["dims"] or range(first.ndim)]
    return VARYING if first.kind.tag == "S" and first.kind.dim in dims else first.kind


def _has_partial(ctx: Context) -> bool:
    return any(o.kind.tag == "P" for o in ctx.operands)


def _moved_order(ctx: Context) -> Kind | None:
    """Rows in the order of an all-to-all must not meet rows in their own order, row by row."""
    pair = [o for o in ctx.operands if o.kind.varies]
    if not ctx.forward or len(pair) != 2 or len(ctx.operands) != 2:
        return None
    notes = [o.kind.note == "moved" for o in pair]
    fits = pair[0].ndim == pair[1].ndim > 1 and pair[0].shape[0] == pair[1].shape[0] > 1
    if notes[0] == notes[1] or not fits:
        return None
    moved, home = pair if notes[0] else reversed(pair)
    ctx.fault(
        "LS512",
        "rows in the order of an all-to-all meet rows in their own order",
        "an all-to-all moved one operand's rows to other ranks, and none brought them back",
        moved,
        home,
        got="V, in exchanged order",
        want="V, in its own order",
    )
    return EQUAL if not pair else VARYING
