"""Parts of a tensor: slices, rows, pieces; and the zeros that their backwards put around."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind, shard
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.views import lost, placed

WHY_SLICE = (
    "each rank keeps another part of its own term, and the other ranks' terms of it are lost"
)


def own_part(ctx: Context, of: Operand, dim: int, even: bool = True) -> Kind:
    """The part of a value that each rank picks for itself: a shard of what is equal."""
    if of.kind.tag == "P":
        if of.kind.note != "echo" and ctx.forward:
            ctx.fault("LS508", "a slice of a partial sum", WHY_SLICE, of, want="R or I")
        return shard(dim)
    if of.kind.tag == "E":
        return replace(shard(dim), power=of.kind.power) if even else VARYING
    return of.kind if of.kind.tag in "Z?" else VARYING


@rule("slice", "narrow", "slice_copy")
def _slice(ctx: Context) -> Kind:
    first, dim = ctx.operands[0], ctx["dim"] % max(ctx.operands[0].ndim, 1)
    if ctx.differs:
        return own_part(ctx, first, dim, even=_tiles(ctx, first.shape[dim], ctx.shape[dim]))
    if first.kind.tag != "S" or first.kind.dim != dim:
        return first.kind
    return first.kind if ctx.shape[dim] == first.shape[dim] else lost(first.kind)


def _tiles(ctx: Context, extent: int, part: int) -> bool:
    """Whether the ranks' slices lie side by side, in the order of the ranks."""
    starts = ctx.constants("start")
    step = ctx["step"] in (None, 1)
    even = extent == part * ctx.size
    return step and even and [s or 0 for s in starts] == [part * place for place in ctx.places]


@rule("select", "select_copy")
def _select(ctx: Context) -> Kind:
    first = ctx.operands[0]
    dim = ctx["dim"] % first.ndim
    if ctx.differs:
        return VARYING if own_part(ctx, first, dim).tag != "?" else UNKNOWN
    if first.kind.tag != "S":
        return first.kind
    if first.kind.dim == dim:
        return lost(first.kind)
    return placed(first.kind, first.kind.dim - (dim < first.kind.dim), first.kind.before)


@rule("split", "split_with_sizes", "split_with_sizes_copy", "chunk", "tensor_split")
@rule("unbind", "unsafe_split")
def _pieces(ctx: Context) -> list[Kind]:
    first = ctx.operands[0]
    dim = (ctx["dim"] or 0) % max(first.ndim, 1)
    value = ctx.node.meta.get("val")
    count = len(value) if isinstance(value, (list, tuple)) else 64
    return [_piece(ctx, first, dim)] * count


def _piece(ctx: Context, first: Operand, dim: int) -> Kind:
    kind = first.kind
    if kind.tag != "S":
        if kind.note == "gathered" and dim != 0:
            return replace(kind, note="")
        return kind
    if ctx.op == "unbind":
        same = kind.dim == dim
        return lost(kind) if same else placed(kind, kind.dim - (dim < kind.dim), kind.before)
    if kind.dim != dim:
        return kind
    blocks = _blocks(ctx)
    whole = blocks and kind.before % blocks == 0
    return placed(kind, dim, kind.before // blocks) if whole else lost(kind)


def _blocks(ctx: Context) -> int:
    """Of how many equal pieces a split is; 0 where they are not equal."""
    value = ctx.node.meta.get("val")
    pieces = value if isinstance(value, (list, tuple)) else []
    return len(pieces) if len({tuple(piece.shape) for piece in pieces}) == 1 else 0


@rule("getitem")
def _getitem(ctx: Context) -> Kind:
    source: Any = ctx.node.args[0]
    found = ctx.kinds.get(source)
    index = ctx.node.args[1]
    if ctx.differs and isinstance(found, list):
        return picked_piece(ctx, source)
    if isinstance(found, list) and isinstance(index, int) and index < len(found):
        return found[index]
    return UNKNOWN


def picked_piece(ctx: Context, source: Any) -> Kind:
    """`x.chunk(n)[rank]`: each rank picks another piece of one split."""
    from lockstep.checker.inference.rules.context import bind, shape_of
    from lockstep.checker.inference.rules.registry import op_name

    bound = bind(source)
    name = op_name(source.target)
    base = bound.get("self")
    if base is None or not isinstance(base, type(source)):
        return UNKNOWN
    operand = Operand(base, ctx.kind(base), shape_of(base))
    dim = (bound.get("dim") or 0) % max(operand.ndim, 1)
    value = source.meta.get("val")
    count = len(value) if isinstance(value, (list, tuple)) else 0
    return own_part(ctx, operand, dim, even=name != "unbind" and count == ctx.size)


@rule("slice_backward", "select_backward")
def _padded(ctx: Context) -> Kind:
    first = ctx.operands[0]
    sizes = ctx["input_sizes"]
    dim = ctx["dim"] % len(sizes)
    kind = first.kind
    if ctx.differs:  # each rank's part in its own place, zeros elsewhere
        return PARTIAL if kind.varies or kind.same else UNKNOWN
    if kind.tag != "S":
        return replace(kind, flat=False)
    at = kind.dim + (ctx.op == "select_backward" and dim <= kind.dim)
    return lost(kind) if at == dim and ctx.op == "slice_backward" else placed(kind, at, kind.before)


@rule("slice_scatter", "select_scatter")
def _scattered(ctx: Context) -> Kind:
    from lockstep.checker.inference.rules.mixing import added

    base, part = ctx.operands[:2]
    dim = ctx["dim"] % base.ndim
    kind = part.kind
    if ctx.differs:
        return UNKNOWN
    if ctx.op == "select_scatter" and kind.tag == "S":
        kind = placed(kind, kind.dim + (dim <= kind.dim), kind.before)
    if any(k.tag == "S" and k.dim == dim for k in (base.kind, kind)):
        return UNKNOWN if "P" in base.kind.tag + kind.tag else VARYING
    shape = ctx.shape if ctx.op == "select_scatter" else part.shape
    return _not_flat(added(ctx, [base, Operand(part.node, kind, shape)]))


@rule("constant_pad_nd", "pad")
def _pad(ctx: Context) -> Kind:
    first, pads = ctx.operands[0], ctx["pad"]
    if ctx.differs:
        return PARTIAL if first.kind.varies and not ctx["value"] else UNKNOWN
    kind = first.kind
    if kind.tag == "Z" and ctx["value"]:
        return EQUAL
    if kind.tag == "P" and ctx["value"]:
        from lockstep.checker.inference.rules.mixing import added

        return added(ctx, [first], constant=True)
    touched = {first.ndim - 1 - i // 2 for i, n in enumerate(pads) if n}
    if kind.tag == "S" and kind.dim in touched:
        return lost(kind)
    return _not_flat(kind)


def _not_flat(kind: Kind) -> Kind:
    return replace(kind, flat=False) if kind.tag == "E" else kind
