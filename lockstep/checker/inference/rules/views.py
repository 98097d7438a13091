"""Views: the same numbers under another shape. Only a shard's place changes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from lockstep.checker.inference.kinds import UNKNOWN, VARYING, Kind
from lockstep.checker.inference.rules.context import Context, Operand, dtype_of
from lockstep.checker.inference.rules.registry import rule


def placed(kind: Kind, dim: int, before: int = 1) -> Kind:
    """Move a shard to another dimension; what the kind notes beside it stays."""
    return replace(kind, dim=dim, before=before)


def lost(kind: Kind) -> Kind:
    """A shard whose place no dimension tells any more."""
    return replace(VARYING, power=kind.power, note=kind.note)


@rule("view", "_unsafe_view", "reshape", "flatten", "unflatten", "_reshape_alias")
def _view(ctx: Context) -> Kind:
    first = ctx.operands[0]
    if dtype_of(first.node) != dtype_of(ctx.node):
        return _other_bits(ctx, first)
    if first.kind.tag != "S":
        stacked = first.kind.note == "cut" and first.shape != ctx.shape
        return replace(first.kind, note="") if stacked else first.kind
    found = reshaped(first.kind, first.shape, ctx.shape)
    return lost(first.kind) if found is None else placed(first.kind, *found)


def _other_bits(ctx: Context, first: Operand) -> Kind:
    """A view as another dtype, whose last dimension may be another; no sum goes through it."""
    kind = first.kind
    if kind.tag == "P":
        return UNKNOWN
    inside = kind.tag == "S" and kind.dim == first.ndim - 1 and first.shape != ctx.shape
    return lost(kind) if inside else replace(kind, flat=kind.flat and first.shape == ctx.shape)


def reshaped(kind: Kind, old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, int] | None:
    """Where a shard is after a reshape, as (dim, before).

    What stays is the number of blocks left of the sharded factor. Where several dimensions fit
    (some have extent 1), one of the old extent is taken.

    Example:
        >>> from lockstep.checker.inference.kinds import shard
        >>> reshaped(shard(2), (2, 3, 8), (6, 8)), reshaped(shard(1), (2, 4), (8,))
        ((1, 1), (0, 2))
    """
    blocks = prod(old[: kind.dim]) * kind.before
    fits = [d for d in range(len(new)) if prod(new[:d]) == blocks]
    if 1 < len(old) < len(new) and kind.before == 1 and new[: kind.dim] == old[: kind.dim]:
        return kind.dim, 1  # one head a rank: the dimension was split where it stood
    if fits and kind.before == 1:
        same = [d for d in fits if new[d] == old[kind.dim]]
        return (same or [d for d in fits if new[d] > 1] or fits)[0], 1
    if fits:
        return ([d for d in fits if new[d] > 1] or fits)[0], 1
    for dim in reversed(range(len(new))):
        left = prod(new[:dim])
        if left and left < blocks and blocks % left == 0 and new[dim] % (blocks // left) == 0:
            inside = blocks // left
            return (dim, inside) if inside < new[dim] else None
    return None


@rule("t")
def _t(ctx: Context) -> Kind:
    kind = ctx.operands[0].kind
    return _moved_to(kind, 1 - kind.dim) if ctx.operands[0].ndim == 2 else kind


@rule("transpose", "swapaxes")
def _transpose(ctx: Context) -> Kind:
    first = ctx.operands[0]
    if first.ndim == 0:
        return first.kind
    names = ("axis0", "axis1") if ctx.op == "swapaxes" else ("dim0", "dim1")
    a, b = (ctx[name] % first.ndim for name in names)
    return _moved_to(first.kind, {a: b, b: a}.get(first.kind.dim, first.kind.dim))


@rule("movedim")
def _movedim(ctx: Context) -> Kind:
    """As torch has it: what is named goes to its place, the others keep their order."""
    first = ctx.operands[0]
    pairs = [ctx["source"], ctx["destination"]]
    source, target = ([d] if isinstance(d, int) else list(d) for d in pairs)
    came = {t % first.ndim: s % first.ndim for s, t in zip(source, target, strict=True)}
    rest = iter(d for d in range(first.ndim) if d not in came.values())
    order = [came[d] if d in came else next(rest) for d in range(first.ndim)]
    return _moved_to(first.kind, order.index(first.kind.dim) if first.kind.tag == "S" else 0)


@rule("permute")
def _permute(ctx: Context) -> Kind:
    first = ctx.operands[0]
    order = [d % first.ndim for d in ctx["dims"]] if first.ndim else [0]
    return _moved_to(first.kind, order.index(first.kind.dim) if first.kind.dim in order else 0)


def _moved_to(kind: Kind, dim: int) -> Kind:
    return placed(kind, dim, kind.before) if kind.tag == "S" else replace(kind, dim=dim)


@rule("expand", "broadcast_to")
def _expand(ctx: Context) -> Kind:
    first = ctx.operands[0]
    if first.kind.tag == "E":
        one = all(n == 1 for n in first.shape)
        return replace(first.kind, flat=first.kind.flat or one, note="")
    return _moved_to(first.kind, first.kind.dim + len(ctx.shape) - first.ndim)


@rule("unsqueeze")
def _unsqueeze(ctx: Context) -> Kind:
    first = ctx.operands[0]
    at = ctx["dim"] % (first.ndim + 1)
    return _moved_to(first.kind, first.kind.dim + (at <= first.kind.dim))


@rule("squeeze")
def _squeeze(ctx: Context) -> Kind:
    first = ctx.operands[0]
    given = ctx["dim"]
    dims = range(first.ndim) if given is None else [given] if isinstance(given, int) else given
    gone = [d % first.ndim for d in dims if first.ndim and first.shape[d] == 1]
    if first.kind.tag == "S" and first.kind.dim in gone:
        return lost(first.kind)
    return _moved_to(first.kind, first.kind.dim - sum(d < first.kind.dim for d in gone))


@rule("as_strided", "unfold", "diagonal")
def _strange(ctx: Context) -> Kind:
    kind = ctx.operands[0].kind
    return lost(kind) if kind.tag == "S" else kind
