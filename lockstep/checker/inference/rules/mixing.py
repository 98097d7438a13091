"""The mixing table: what kinds give when tensors are combined element by element."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import (
    EQUAL,
    FLAT,
    PARTIAL,
    UNKNOWN,
    VARYING,
    ZERO,
    Kind,
    shard,
)
from lockstep.checker.inference.rules.context import Context, Operand, dtype_of

ADDS = "every rank adds it, so the sum over the ranks counts it once per rank"


def spread(ctx: Context, operands: list[Operand]) -> Kind:
    """Combine kinds that are no partials, shapes broadcast: what any function of elements gives."""
    live = [o for o in operands if o.kind.tag != "Z"]
    if any(o.kind.tag == "?" for o in live):
        return UNKNOWN
    if not live:
        return FLAT
    moved = "moved" if any(o.kind.note == "moved" for o in live) else ""
    if any(o.kind.tag == "V" for o in live):
        return replace(VARYING, note=_mask(ctx, live) or moved)
    shards = [o for o in live if o.kind.tag == "S"]
    if not shards:
        if all(o.kind.flat or o.shape == () for o in live):
            return FLAT
        notes = {o.kind for o in live if o.kind.note == "gathered" and not o.kind.power}
        return notes.pop() if len(notes) == 1 and len(live) == 1 else EQUAL
    ndim = max(o.ndim for o in operands)
    places = {(o.kind.dim - o.ndim + ndim, o.kind.before) for o in shards}
    if len(places) > 1:
        return replace(VARYING, note=moved)
    dim, before = places.pop()
    if any(_meets(o, dim - ndim) for o in live):
        return replace(VARYING, note=moved)
    return replace(shard(dim, before), note=moved)


def _meets(operand: Operand, from_end: int) -> bool:
    """Whether an equal operand has an extent of its own along the sharded dimension."""
    kind = operand.kind
    inside = -from_end <= operand.ndim
    return kind.tag == "E" and not kind.flat and inside and operand.shape[from_end] > 1


def _mask(ctx: Context, operands: list[Operand]) -> str:
    if str(dtype_of(ctx.node)) == "torch.bool" or all(
        o.kind.note == "mask" or o.kind.same for o in operands
    ):
        return "mask"
    return "lookup" if len(operands) == 1 and operands[0].kind.note == "lookup" else ""


def nonlinear(ctx: Context, operands: list[Operand] | None = None) -> Kind:
    """Combine by a function that is not linear: a partial must be reduced before."""
    operands = ctx.operands if operands is None else operands
    partial = _partial(operands)
    if partial is None:
        return spread(ctx, operands)
    if partial.kind.note != "echo":
        ctx.fault(
            "LS502",
            f"{ctx.op} of a partial sum",
            f"{ctx.op} is not linear: of the terms it is not what it is of their sum",
            partial,
            want="R or I",
        )
    return after_error(ctx, EQUAL)


def added(ctx: Context, operands: list[Operand], constant: bool = False) -> Kind:
    """Combine by a sum: all are partial, or none is.

    Args:
        constant: whether a number other than zero is added too.
    """
    live = [o for o in operands if o.kind.tag != "Z"]
    partial = _partial(live)
    if not live:
        return EQUAL if constant else ZERO
    if any(o.kind.tag == "?" for o in live):
        return UNKNOWN
    if partial is None:
        mixed = spread(ctx, operands)
        return replace(EQUAL, flat=False) if constant and mixed.same and not mixed.flat else mixed
    others = [o for o in live if o.kind.tag != "P"]
    if not others and not constant:
        _same_factor(ctx, live)
        one = len({o.kind.note for o in live}) == 1 or partial.kind.note != "cut"
        return partial.kind if one else replace(partial.kind, note="")
    if any(o.kind.tag == "V" for o in others):
        return UNKNOWN  # what became of a layout that was lost: it may be terms of the same sum
    if any(o.kind.note == "echo" for o in live):
        return partial.kind
    if partial.kind.power == 1 and all(o.kind.same for o in others):
        return partial.kind  # the mean of terms that all got the same: that much more
    other = others[0] if others else None
    shards = other is not None and other.kind.tag == "S"
    ctx.fault(
        "LS501",
        "a partial sum is added to a " + ("shard" if shards else "value that is whole"),
        "the shard is of one rank's part, the partial of all" if shards else ADDS,
        partial,
        other,
        want="R or I",
    )
    return after_error(ctx, other.kind if other else EQUAL)


def _same_factor(ctx: Context, operands: list[Operand]) -> None:
    powers = {o.kind.power for o in operands}
    if len(powers) > 1 and ctx.forward:
        mean = next(o for o in operands if o.kind.power)
        total = next(o for o in operands if not o.kind.power)
        ctx.fault(
            "LS516",
            "a partial mean is added to a partial sum",
            "one stands for the mean over the ranks, the other for the sum: no reduction fits both",
            mean,
            total,
            want="P",
        )


def scaled(ctx: Context, operands: list[Operand], linear_in: int | None = None) -> Kind:
    """Combine by a product, linear in each operand (or in the one given alone)."""
    if linear_in is None and any(o.kind.tag == "Z" for o in operands):
        return ZERO
    masked = masked_lookup(operands)
    if masked:
        return PARTIAL
    partials = [o for o in operands if o.kind.tag == "P"]
    if len(partials) != 1 or (linear_in is not None and operands[linear_in] is not partials[0]):
        if len(partials) > 1:
            ctx.fault(
                "LS502",
                "a product of partial sums",
                "the product of sums is not the sum of the ranks' products",
                partials[0],
                partials[1],
                want="R or I",
            )
            return after_error(ctx, EQUAL)
        return nonlinear(ctx, operands)
    rest = [o for o in operands if o is not partials[0]]
    if any(o.kind.tag in "?V" for o in rest):
        return UNKNOWN
    if any(o.kind.tag == "S" for o in rest):
        if partials[0].kind.note != "echo":
            ctx.fault(
                "LS502",
                "a partial sum is multiplied by a shard",
                "each rank scales its term by another factor: they no longer add up to the sum",
                partials[0],
                next(o for o in rest if o.kind.tag == "S"),
                want="R or I",
            )
        return after_error(ctx, VARYING)
    return replace(partials[0].kind, flat=False)


def masked_lookup(operands: list[Operand]) -> bool:
    """Whether rows read from a shard are zeroed here on the ranks that do not hold them."""
    notes = [o.kind.note for o in operands]
    return "lookup" in notes and "mask" in notes


def after_error(ctx: Context, repaired: Kind) -> Kind:
    """Return what to go on with, so that one fault gives one finding.

    Values go on as repaired, but for the backward: there a partial goes on as a partial,
    so that what it reaches is seen to be partial, but is not reported again.
    """
    if ctx.phase != "backward":
        return replace(repaired, note="", power=0)
    return replace(PARTIAL, note="echo")


def _partial(operands: list[Operand]) -> Operand | None:
    return next((o for o in operands if o.kind.tag == "P"), None)
