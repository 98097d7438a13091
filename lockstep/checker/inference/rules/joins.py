"""Several tensors side by side."""

from __future__ import annotations

from dataclasses import replace
from operator import getitem

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, ZERO, Kind
from lockstep.checker.inference.rules.context import Context, Operand, bind
from lockstep.checker.inference.rules.mixing import added
from lockstep.checker.inference.rules.registry import op_name, rule
from lockstep.checker.inference.rules.views import placed

SPLITS = ("split", "split_with_sizes", "chunk", "tensor_split", "unsafe_split")


@rule("cat", "concat", "concatenate")
def _cat(ctx: Context) -> Kind:
    pieces = [o for o in ctx.operands if o.shape != (0,)]
    dim = (ctx["dim"] or 0) % max(len(ctx.shape), 1)
    if ctx.picks:
        return _own_slot(ctx, pieces)
    _gathered_along(ctx, pieces, dim)
    kinds = [o.kind for o in pieces]
    if all(k.tag == "S" and (k.dim, k.before) == (dim, 1) for k in kinds):
        even = len({o.shape for o in pieces}) == 1
        before = len(kinds)
        return placed(kinds[0], dim, before) if even and before > 1 else _one(kinds)
    shards = [k for k in kinds if k.tag == "S"]
    if shards and any(k.tag in "EZ" and not k.flat for k in kinds):
        return VARYING
    if shards and shards[0].dim == dim:
        return VARYING
    joined = added(ctx, pieces) if pieces else EQUAL
    joined = replace(joined, flat=False) if joined.tag == "E" else joined
    return _stacked(ctx, joined, dim)


def _stacked(ctx: Context, joined: Kind, dim: int) -> Kind:
    """Note that the pieces of one even split were stacked, one for each rank, to be scattered."""
    made_by = {piece.args[0] for piece in ctx.node.all_input_nodes if piece.target is getitem}
    (source, *others) = made_by or {None}
    order = [piece.args[1] for piece in ctx.node.all_input_nodes if piece.args[:1] == (source,)]
    whole = source is not None and not others and order == list(range(ctx.size))
    if not whole or dim != 0 or joined.tag not in "EP" or joined.note:
        return joined
    assert source is not None
    bound, first = bind(source), ctx.operands[0]
    even = len({o.shape for o in ctx.operands}) == 1 and op_name(source.target) in SPLITS
    along = (bound.get("dim") or 0) % max(first.ndim, 1)
    return replace(joined, dim=along, note="cut") if even and along else joined


def _one(kinds: list[Kind]) -> Kind:
    return kinds[0] if len(kinds) == 1 else VARYING


def _own_slot(ctx: Context, pieces: list[Operand]) -> Kind:
    """Each rank puts its own part into its own slot: among zeros, the sum over ranks is meant."""
    kinds = [o.kind for o in pieces]
    if any(k.tag == "?" for k in kinds):
        return UNKNOWN
    if all(k.tag == "Z" for k in kinds):
        return ZERO
    return PARTIAL if any(k.tag == "Z" for k in kinds) else VARYING


def _gathered_along(ctx: Context, pieces: list[Operand], dim: int) -> None:
    """Pieces of one gather, joined along another dimension than the one that was sharded."""
    gathered = {o.kind for o in pieces if o.kind.note == "gathered"}
    if len(gathered) != 1 or len(pieces) != ctx.size or not ctx.forward:
        return
    (kind,) = gathered
    if kind.before == 1 and kind.dim != dim:
        ctx.fault(
            "LS507",
            f"shards of dimension {kind.dim} are gathered along dimension {dim}",
            "the parts are put together along another dimension than they were cut",
            pieces[0],
            got=f"S({kind.dim})",
            want=f"S({dim})",
        )


@rule("stack")
def _stack(ctx: Context) -> Kind:
    dim = (ctx["dim"] or 0) % len(ctx.shape)
    if ctx.picks:
        return _own_slot(ctx, ctx.operands)
    joined = added(ctx, ctx.operands)
    if joined.tag != "S":
        return replace(joined, flat=False) if joined.tag == "E" else joined
    if any(o.kind.tag in "EZ" and not o.kind.flat for o in ctx.operands):
        return VARYING
    return placed(joined, joined.dim + (dim <= joined.dim), joined.before)


@rule("repeat", "tile")
def _repeat(ctx: Context) -> Kind:
    first = ctx.operands[0]
    counts = ctx["repeats"] or ctx["dims"]
    if first.kind.tag != "S":
        return first.kind
    at = first.kind.dim + len(ctx.shape) - first.ndim
    return VARYING if counts[at - len(ctx.shape)] > 1 else placed(first.kind, at)


@rule("repeat_interleave")
def _interleave(ctx: Context) -> Kind:
    first = ctx.operands[0]
    if any(not o.kind.same for o in ctx.operands[1:]):
        return VARYING
    return VARYING if first.kind.tag == "S" and first.kind.dim == ctx["dim"] else first.kind
