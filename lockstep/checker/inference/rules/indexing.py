"""Rows by index: index, gather, scatter, embedding, and what their backwards add up."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind, shard
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.mixing import added, spread
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.views import placed

LOOKUP = replace(VARYING, note="lookup")


@rule("embedding")
def _embedding(ctx: Context) -> Kind:
    table, ids = ctx.operands[0], ctx.operands[1]
    return rows(ctx, table, 0, ids)


def rows(ctx: Context, of: Operand, dim: int, ids: Operand) -> Kind:
    """`of` at these indices along one dimension; theirs take that dimension's place."""
    kind, index = of.kind, ids.kind
    if "?" in kind.tag + index.tag:
        return UNKNOWN
    if kind.tag == "S" and kind.dim == dim:
        return LOOKUP if index.tag == "V" else VARYING
    if index.same:
        if kind.tag == "S":
            at = kind.dim + (ids.ndim - 1 if kind.dim > dim else 0)
            return placed(kind, at, kind.before)
        return replace(kind, flat=kind.flat and kind.tag in "EZ")
    if kind.same and index.tag == "S":
        return shard(index.dim + dim, index.before)
    if kind.tag == "P":
        return UNKNOWN
    return VARYING


@rule("embedding_dense_backward")
def _embedding_backward(ctx: Context) -> Kind:
    grad, ids = ctx.operands[0], ctx.operands[1]
    kind, index = grad.kind, ids.kind
    if "?" in kind.tag + index.tag:
        return UNKNOWN
    if index.same:
        if kind.tag == "S" and kind.dim == grad.ndim - 1:
            return placed(kind, 1, kind.before)
        return VARYING if kind.tag == "S" else replace(kind, flat=False)
    if index.tag == "S" and kind.tag == "S":
        same = (kind.dim, kind.before) == (index.dim, index.before)
        return replace(PARTIAL, power=kind.power) if same else VARYING
    if index.tag == "S" and kind.tag in "PZ":
        return UNKNOWN
    return VARYING


@rule("index", "index_select", "_unsafe_index", "take_along_dim")
def _index(ctx: Context) -> Kind:
    first = ctx.operands[0]
    if ctx.op == "index_select":
        return rows(ctx, first, ctx["dim"] % first.ndim, ctx.operands[1])
    if ctx.op == "take_along_dim":
        return UNKNOWN
    given = [(i, index) for i, index in enumerate(ctx["indices"]) if index is not None]
    ids = [ctx.operand(index) for _, index in given]
    masks = any(str(o.node.meta["val"].dtype) in ("torch.bool", "torch.uint8") for o in ids)
    if len(given) == 1 and not masks:
        return rows(ctx, first, given[0][0], ids[0])
    if all(o.kind.same for o in ids):
        if first.kind.tag != "S":
            return first.kind
        touched = [i for i, _ in given]
        return VARYING if masks or len(given) > 1 or first.kind.dim in touched else first.kind
    kinds = [o.kind.tag for o in (first, *ids)]
    if "?" in kinds or first.kind.tag == "P":
        return UNKNOWN
    varied = [o for (i, _), o in zip(given, ids, strict=True) if not o.kind.same]
    at = next(i for (i, _), o in zip(given, ids, strict=True) if o is varied[0])
    one = len(varied) == 1 and varied[0].kind.tag == "V"
    return LOOKUP if one and first.kind.tag == "S" and first.kind.dim == at else VARYING


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(ctx: Context) -> Kind:
    base = ctx.operands[0]
    values = ctx.operand(ctx["values"])
    ids = [(i, ctx.operand(x)) for i, x in enumerate(ctx["indices"]) if x is not None]
    index = next((o for _, o in ids if not o.kind.same), None)
    if any(o.kind.tag == "?" for o in ctx.operands):
        return UNKNOWN
    if base.kind.note == "lookup" and index is not None and values.kind.tag == "Z":
        return PARTIAL  # rows that this rank does not hold are zeroed
    if index is None:
        return _put_equal(ctx, base, values, [i for i, _ in ids])
    if not ctx["accumulate"] or len(ids) != 1:
        return VARYING if base.kind.tag != "P" else UNKNOWN
    return scattered(ctx, base, values, ids[0][0], index)


def _put_equal(ctx: Context, base: Operand, values: Operand, dims: list[int]) -> Kind:
    if base.kind.tag == "S" or values.kind.tag == "S":
        if base.kind.tag == "S" and values.kind.flat and base.kind.dim not in dims:
            return base.kind
        one = len(dims) == 1 and base.kind.tag == "Z" and values.kind.tag == "S"
        kind = values.kind
        width = values.ndim - (len(ctx.shape) - 1)  # of the index
        if one and (kind.dim < dims[0] or kind.dim >= dims[0] + width):
            at = kind.dim - (width - 1 if kind.dim >= dims[0] else 0)
            return placed(kind, at, kind.before)
        return VARYING
    if base.kind.tag == "Z" and values.kind.tag == "P":
        return values.kind
    return replace(added(ctx, [base, values]), flat=False)


def scattered(ctx: Context, base: Operand, values: Operand, dim: int, index: Operand) -> Kind:
    """Values added to rows that the ranks choose differently: each rank's own sum."""
    kind = values.kind
    rowwise = index.kind.tag == "S" and kind.tag == "S" and kind.dim == index.kind.dim + dim
    flat = index.kind.tag == "S" and kind.same and kind.flat
    if rowwise or flat:
        term = replace(PARTIAL, power=kind.power)
        if base.kind.tag in "ZP":
            return term
    return VARYING if base.kind.tag in "EZVS" and kind.tag in "EZVS" else UNKNOWN


@rule("index_add", "index_reduce", "index_copy")
def _index_add(ctx: Context) -> Kind:
    base, index, source = ctx.operands[0], ctx.operands[1], ctx.operands[2]
    dim = ctx["dim"] % max(base.ndim, 1)
    if any(o.kind.tag == "?" for o in ctx.operands):
        return UNKNOWN
    if ctx.op != "index_add":
        same = all(o.kind.same for o in ctx.operands)
        return EQUAL if same else UNKNOWN
    if index.kind.same:
        if any(o.kind.tag == "S" and o.kind.dim == dim for o in (base, source)):
            return VARYING
        if base.kind.tag == "E" and source.kind.tag == "S":
            return VARYING
        return replace(added(ctx, [base, source]), flat=False)
    return scattered(ctx, base, source, dim, index)


@rule("gather")
def _gather(ctx: Context) -> Kind:
    first, index = ctx.operands[0], ctx.operands[1]
    dim = ctx["dim"] % max(first.ndim, 1)
    kind = first.kind
    if "?" in kind.tag + index.kind.tag:
        return UNKNOWN
    if kind.tag == "S" and kind.dim == dim:
        return LOOKUP if index.kind.tag == "V" else VARYING
    if index.kind.same:
        if kind.tag != "S":
            return replace(kind, flat=False) if kind.tag == "E" else kind
        return VARYING  # an equal index has an extent of its own along the sharded dimension
    if kind.tag == "P":
        return UNKNOWN
    if index.kind.tag == "S" and kind.tag == "S":
        return kind if (kind.dim, kind.before) == (index.kind.dim, index.kind.before) else VARYING
    if index.kind.tag == "S" and kind.same:
        alone = index.kind.dim == dim or first.shape[index.kind.dim] == 1 or kind.flat
        return index.kind if alone else VARYING
    return VARYING


@rule("scatter", "scatter_add", "scatter_reduce")
def _scatter(ctx: Context) -> Kind:
    base, index = ctx.operands[0], ctx.operands[1]
    values = ctx.operands[2:] or []
    dim = ctx["dim"] % max(base.ndim, 1)
    kinds = [o.kind for o in ctx.operands]
    if any(k.tag == "?" for k in kinds):
        return UNKNOWN
    adds = ctx.op == "scatter_add"
    if all(k.tag in "EZ" for k in kinds):
        return EQUAL
    if any(k.tag == "P" for k in kinds):
        ok = index.kind.same and adds and all(k.tag in "PZ" for k in (kinds[0], *kinds[2:]))
        put = index.kind.same and kinds[0].tag == "Z" and len(kinds) > 2 and kinds[2].tag == "P"
        put = put and ctx.op != "scatter_reduce"  # which may take the largest
        return next(k for k in kinds if k.tag == "P") if ok or put else UNKNOWN
    shards = [k for k in kinds if k.tag == "S"]
    if len({(k.dim, k.before) for k in shards}) != 1 or any(k.tag == "V" for k in kinds):
        return VARYING
    at = shards[0].dim
    if at != dim:
        sided = [o for o in ctx.operands if o.kind.tag == "E" and not o.kind.flat]
        return VARYING if sided else shards[0]
    source = values[0] if values else None
    rowwise = source is not None and (source.kind.tag == "S" or source.kind.flat)
    if adds and base.kind.tag in "Z" and index.kind.tag == "S" and rowwise:
        return PARTIAL
    return VARYING


@rule("one_hot")
def _one_hot(ctx: Context) -> Kind:
    return spread(ctx, ctx.operands)


@rule("bincount", "histc", "nonzero", "unique_dim", "_unique2", "masked_select", linear=False)
def _data_dependent(ctx: Context) -> Kind | list[Kind]:
    kind = _by_value(ctx)
    value = ctx.node.meta["val"]
    return [kind] * len(value) if isinstance(value, (list, tuple)) else kind


def _by_value(ctx: Context) -> Kind:
    kinds = [o.kind for o in ctx.operands]
    if all(k.same for k in kinds):
        return EQUAL
    if ctx.op == "bincount" and kinds[0].tag == "S":
        return PARTIAL
    return UNKNOWN if any(k.tag in "?P" for k in kinds) else VARYING
