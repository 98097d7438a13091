"""Products of matrices: a contraction over a dimension that both operands shard gives P."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, ZERO, Kind
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.mixing import added, after_error
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.views import placed


@rule("mm", "bmm", "mv", "dot", "matmul", "vdot")
def _mm(ctx: Context) -> Kind:
    return product(ctx, ctx.operands[0], ctx.operands[1])


def product(ctx: Context, a: Operand, b: Operand) -> Kind:
    """`a @ b` for operands of the ranks that mm, bmm, mv and dot take."""
    if "?" in a.kind.tag + b.kind.tag:
        return UNKNOWN
    if "Z" in a.kind.tag + b.kind.tag:
        return ZERO
    if "P" in a.kind.tag + b.kind.tag:
        return _with_partial(ctx, a, b)
    power = max(a.kind.power, b.kind.power)
    last, row = a.ndim - 1, max(b.ndim - 2, 0)
    sa, sb = a.kind.tag == "S", b.kind.tag == "S"
    if a.kind.same and b.kind.same:
        return replace(EQUAL, power=power)
    if sa and sb and a.kind.dim == last and b.kind.dim == row:
        same = a.kind.before == b.kind.before
        return replace(PARTIAL, power=power) if same else VARYING
    if a.ndim == b.ndim == 3 and sa and sb and a.kind.dim == b.kind.dim == 0:
        return a.kind if a.kind.before == b.kind.before else VARYING
    if sa and sb:
        _blocks(ctx, a, b)
        return VARYING
    inside = a.ndim == 3 or a.ndim == 1
    if sa and b.kind.same and a.kind.dim < last and not (inside and a.kind.dim == 0):
        return a.kind
    if sb and a.kind.same and b.kind.dim == b.ndim - 1 and b.ndim > 1:
        return placed(b.kind, len(ctx.shape) - 1, b.kind.before)
    if _flat_contraction(a, b, last, row):
        return replace(PARTIAL, power=power)
    return VARYING


def _flat_contraction(a: Operand, b: Operand, last: int, row: int) -> bool:
    """A shard contracted with one number that stands everywhere: a sum, but for a factor."""
    return (a.kind.tag == "S" and a.kind.dim == last and b.kind.flat) or (
        b.kind.tag == "S" and b.kind.dim == row and a.kind.flat
    )


def _with_partial(ctx: Context, a: Operand, b: Operand) -> Kind:
    partial, other = (a, b) if a.kind.tag == "P" else (b, a)
    if other.kind.same:
        return partial.kind
    if other.kind.tag == "V":
        return UNKNOWN
    if partial.kind.note != "echo":
        ctx.fault(
            "LS502",
            f"a partial sum is multiplied by a {'partial' if other.kind.tag == 'P' else 'shard'}",
            "the product of sums is not the sum of the ranks' products",
            partial,
            other,
            want="R or I",
        )
    return after_error(ctx, EQUAL if other.kind.tag == "P" else VARYING)


def _blocks(ctx: Context, a: Operand, b: Operand) -> None:
    """Rows of one operand and columns of the other on one axis: off-diagonal blocks are missing."""
    flat = a.ndim == b.ndim == 2 and a.kind.before == b.kind.before == 1
    if not ctx.forward or not flat or a.kind.dim != 0 or b.kind.dim != 1:
        return
    ctx.fault(
        "LS517",
        "shards of the rows meet shards of the columns",
        "each rank multiplies its rows by its columns alone: only the diagonal blocks of the "
        "product exist; one of the operands has to be gathered first",
        a,
        b,
        want="R",
    )


@rule("addmm", "baddbmm", "addbmm", "addmv")
def _addmm(ctx: Context) -> Kind:
    bias, a, b = ctx.operands[:3]
    made = product(ctx, a, b)
    return add_to(ctx, bias, made)


def add_to(ctx: Context, bias: Operand, made: Kind) -> Kind:
    """Add an operand to a result that no node stands for yet."""
    return added(ctx, [bias, Operand(ctx.node, made, ctx.shape)])


@rule("linear")
def _linear(ctx: Context) -> Kind:
    x, weight = ctx.operands[0], ctx.operands[1]
    turned = replace(weight.kind, dim=1 - weight.kind.dim)
    flat = Operand(weight.node, turned, weight.shape[::-1])
    rows = Operand(x.node, _folded(x), (1, *x.shape[-1:]))
    made = product(ctx, rows, flat)
    if made.tag == "S":
        outer = x.kind.tag == "S" and x.kind.dim < x.ndim - 1
        made = placed(made, x.kind.dim if outer else x.ndim - 1, made.before)
    bias = ctx.get("bias")
    return made if bias is None else add_to(ctx, bias, made)


def _folded(x: Operand) -> Kind:
    """The kind of an input whose leading dimensions are one."""
    return x.kind if x.kind.tag != "S" else placed(x.kind, int(x.kind.dim == x.ndim - 1))


@rule("_grouped_mm", "outer", "ger", "kron")
def _others(ctx: Context) -> Kind:
    same = all(o.kind.same for o in ctx.operands)
    return EQUAL if same else UNKNOWN
