"""What the user says of a value, against what was found out about it."""

from __future__ import annotations

from typing import Any

from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules.context import Context, Fault
from lockstep.spmd.types import Type

COUNTED = "the same value is counted once on every rank: the sum is as many times too large"


def check_claim(ctx: Context, claim: Type, found: Kind) -> None:
    """Object to a claim that contradicts what was inferred; V contradicts nothing."""
    said = contradiction(claim, found, (ctx.node.meta.get("val")))
    if said is not None:
        code, what, why = said
        ctx.report(Fault(code, what, why, ctx.node, ctx.node, None, repr(found), str(claim)))


def contradiction(claim: Type, found: Kind, value: Any) -> tuple[str, str, str] | None:
    """Return code, what and why of a claim that cannot hold; None if it can."""
    if found.note == "echo" or found.tag in "?Z":
        return None
    if claim.kind == "P":
        if found.tag == "E" and not found.flat:
            return "LS506", "a value that is the same on every rank is claimed to be P", COUNTED
        if found.tag == "P" and found.power and claim.factor == "sum":
            why = "each rank holds a mean over its own shard: their sum is N times the mean"
            return "LS516", "a partial mean is claimed to be a partial sum", why
    elif claim.kind in "RI":
        if found.tag == "P":
            why = "the ranks hold terms of a sum that nobody has added up"
            return "LS506", f"a partial sum is claimed to be {claim}", why
        if found.tag == "S":
            why = "the ranks hold different parts of it"
            return "LS506", f"a shard of dimension {found.dim} is claimed to be {claim}", why
    elif claim.kind == "S":
        if found.tag == "P":
            why = "the ranks hold terms of a sum, not parts of a whole"
            return "LS506", f"a partial sum is claimed to be {claim}", why
        if found.tag == "S" and found.before == 1 and found.dim != claim.dim:
            why = "the ranks hold parts along another dimension"
            return "LS507", f"a shard of dimension {found.dim} is claimed to be {claim}", why
    return None


def check_move(ctx: Context, move: tuple[Any, ...], found: Kind) -> None:
    """Object to a typed collective whose input is not of the type that it takes."""
    verb, src, _dst, before, _line = move
    if found.note == "echo" or found.tag in "?Z":
        return
    said = None
    if verb in ("all_reduce", "reduce_scatter") and src.kind == "P" and found.tag == "E":
        if not found.flat:
            said = (
                "LS505",
                f"{verb} of a value that every rank holds already",
                COUNTED,
            )
    elif verb == "convert" and src.kind in "RI" and found.tag in "SP":
        said = contradiction(src, found, None)
    else:
        said = contradiction(src, found, None)
    if said is not None:
        code, what, why = said
        got = "R or I" if found.tag == "E" else repr(found)
        ctx.report(Fault(code, what, why, ctx.node, before, None, got, str(src)))
