"""Functional collectives, and operators that read the rank's own coordinate."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind, shard
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.mixing import nonlinear
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.slices import own_part
from lockstep.checker.inference.rules.views import lost, placed

C = "_c10d_functional."
WHY_TWICE = "its sum over the ranks is as many times too large"


def other_axis(ctx: Context) -> bool:
    """Whether this collective runs over another axis than the one that is typed."""
    name = ctx["group_name"] if ctx.has("group_name") else ctx["axis"]
    return name != ctx.axis


@rule(C + "wait_tensor")
def _wait(ctx: Context) -> Kind:
    return ctx.operands[0].kind


@rule(C + "all_reduce")
def _all_reduce(ctx: Context) -> Kind:
    return _reduced(ctx, ctx.operands[0], str(ctx["reduce_op"]))


def _reduced(ctx: Context, x: Operand, how: str) -> Kind:
    if other_axis(ctx):
        return x.kind if how in ("sum", "avg") else nonlinear(ctx, [x])
    if how not in ("sum", "avg"):
        if x.kind.tag == "P":
            nonlinear(ctx, [x])
        return EQUAL
    if x.kind.tag == "S":
        _shards_added(ctx, x, how)
        return EQUAL
    if x.kind.note == "lookup" and x.kind.tag == "V" and ctx.forward:
        ctx.fault(
            "LS509",
            "rows looked up in a shard are added up without a mask",
            "a rank reads some row of its own for an index that it does not hold, and the sum "
            "counts that row too",
            x,
            got="V: rows by indices that vary",
            want="P: zero where the rank does not hold the row",
            at=_lookup(ctx, x),
        )
    if x.kind.same and how == "sum":
        return summed_again(ctx, x)
    power = x.kind.power
    if how == "avg":
        return replace(EQUAL, power=max(power - 1, 0) if x.kind.tag == "P" else power)
    return replace(EQUAL, power=power)


def _lookup(ctx: Context, x: Operand) -> Node:
    """The node that read the rows: there a mask is missing."""
    node: Node | None = x.node
    found = x.node
    while node is not None:
        found = node
        sources = [n for n in node.all_input_nodes if ctx.kind(n).note == "lookup"]
        node = sources[0] if sources else None
    return found


def _shards_added(ctx: Context, x: Operand, how: str) -> None:
    if ctx.forward and x.kind.before == 1 and x.shape and x.kind.note != "echo":
        ctx.fault(
            "LS507",
            f"all_reduce({how}) of shards of dimension {x.kind.dim}",
            "the ranks hold different parts of one tensor, not terms of a sum",
            x,
            want="P",
        )


def summed_again(ctx: Context, x: Operand) -> Kind:
    """The sum of a value that all ranks hold already: N times it, until someone divides by N."""
    value = x.node.meta.get("val")
    floating = value is not None and value.dtype.is_floating_point
    if x.kind.flat or x.kind.tag == "Z" or not floating or x.kind.note == "echo":
        return EQUAL
    if not ctx.forward:
        return x.kind  # terms of a gradient may be equal, and their sum be what is meant
    ctx.fault(
        "LS505",
        "a value that every rank holds already is summed over the ranks",
        WHY_TWICE,
        x,
        got="R or I",
        want="P",
    )
    return EQUAL


def in_blocks(kind: Kind, count: int) -> Kind:
    """One of so many equal blocks along the first dimension; a shard that lies in each stays."""
    if kind.tag == "S" and kind.dim == 0 and kind.before % count == 0:
        return placed(kind, 0, kind.before // count)
    return lost_rows(kind)


def lost_rows(kind: Kind) -> Kind:
    """What is left where rows go to other ranks of another axis."""
    return lost(kind) if kind.tag == "S" and kind.dim == 0 else kind


@rule(C + "all_gather_into_tensor")
def _all_gather(ctx: Context) -> Kind:
    x = ctx.operands[0]
    if other_axis(ctx):
        if x.kind.tag == "S" and x.kind.dim == 0:
            return placed(x.kind, 0, x.kind.before * ctx["group_size"])
        return x.kind
    if x.kind.tag == "P" and x.kind.note != "echo":
        ctx.fault(
            "LS507",
            "an all-gather of partial sums",
            "the ranks' terms are put side by side, where their sum is meant",
            x,
            want="S(0) or V",
        )
    if x.kind.tag == "S" and x.kind.before == 1:
        return Kind("E", dim=x.kind.dim, note="gathered", power=x.kind.power)
    return replace(EQUAL, power=x.kind.power)


@rule(C + "reduce_scatter_tensor")
def _reduce_scatter(ctx: Context) -> Kind:
    x = ctx.operands[0]
    how = str(ctx["reduce_op"])
    if other_axis(ctx):
        return in_blocks(x.kind, ctx["group_size"])
    if x.kind.tag == "E" and how == "sum":
        summed_again(ctx, x)
    if x.kind.tag == "?":
        return UNKNOWN
    power = x.kind.power - (how == "avg" and x.kind.tag == "P")
    dim = x.kind.dim if x.kind.note == "cut" else 0
    return replace(shard(dim), power=max(power, 0))


@rule(C + "all_to_all_single")
def _all_to_all(ctx: Context) -> Kind:
    x = ctx.operands[0]
    if other_axis(ctx):
        splits = ctx["input_split_sizes"]
        kept = in_blocks(x.kind, len(splits))
        even = splits == ctx["output_split_sizes"] and len(set(splits)) == 1
        return x.kind if even and kept.tag == x.kind.tag else lost_rows(x.kind)
    if x.kind.tag == "P" and x.kind.note != "echo":
        ctx.fault(
            "LS507",
            "an all-to-all of partial sums",
            "terms of a sum go to different ranks, and are never added up",
            x,
            want="S or V",
        )
    if x.kind.tag == "?":
        return UNKNOWN
    note = "" if x.kind.note == "moved" or not ctx.forward else "moved"
    return replace(VARYING, note=note, power=x.kind.power)


@rule(C + "broadcast")
def _broadcast(ctx: Context) -> Kind:
    x = ctx.operands[0]
    if other_axis(ctx):
        return x.kind
    if x.kind.tag == "P" and x.kind.note != "echo":
        ctx.fault(
            "LS507",
            "a broadcast of a partial sum",
            "one rank's term is sent, where the sum is meant",
            x,
            want="V, R or I",
        )
    return EQUAL


@rule("lockstep.send", "lockstep.recv", "lockstep.settle")
def _message(ctx: Context) -> Kind:
    """What another program made: only that program's own types can tell what it is."""
    return ctx.operands[0].kind if ctx.op == "lockstep.settle" else UNKNOWN


@rule("lockstep.own_slice")
def _own_slice(ctx: Context) -> Kind:
    x = ctx.operands[0]
    if other_axis(ctx):
        return lost(x.kind) if x.kind.tag == "S" and x.kind.dim == ctx["dim"] else x.kind
    return own_part(ctx, x, ctx["dim"])


@rule("lockstep.own_pad")
def _own_pad(ctx: Context) -> Kind:
    x = ctx.operands[0]
    if other_axis(ctx):
        return lost(x.kind) if x.kind.tag == "S" and x.kind.dim == ctx["dim"] else x.kind
    return UNKNOWN if x.kind.tag == "?" else replace(PARTIAL, power=x.kind.power)


@rule("lockstep.own_trim")
def _own_trim(ctx: Context) -> Kind:
    return ctx.operands[0].kind


@rule("lockstep.keep_on")
def _keep_on(ctx: Context) -> Kind:
    x = ctx.operands[0]
    if other_axis(ctx):
        return x.kind if x.kind.tag in "?P" else replace(VARYING, power=x.kind.power)
    return UNKNOWN if x.kind.tag == "?" else replace(PARTIAL, power=x.kind.power)
