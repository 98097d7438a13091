"""From what a call of a typed collective asks for to the actions that it means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from lockstep.errors import UsageError
from lockstep.spmd.advice import admit, admit_op
from lockstep.spmd.mesh import Axis
from lockstep.spmd.ops import coordinate
from lockstep.spmd.transitions import Ask, Move, Sizes, move
from lockstep.spmd.types import Type, checked_type

Given = int | tuple[int, ...] | None
_OPS = {"all_reduce": ("sum", "avg", "max", "min"), "reduce_scatter": ("sum", "avg")}


def frozen(sizes: int | Sequence[int] | None) -> Given:
    """Return sizes as a key of a table."""
    return sizes if sizes is None or isinstance(sizes, int) else tuple(sizes)


def plan(
    over: Axis,
    verb: str,
    axis: str,
    src: Type,
    dst: Type,
    op: str | None = None,
    dim: int = 0,
    src_sizes: Given = None,
    dst_sizes: Given = None,
    root: int = 0,
    expert: bool = False,
) -> Move | Callable[[torch.Size], Move]:
    """Check a call; return its actions, or what makes them from a shape where that counts.

    Args:
        over: the axis of that name.
        dim: the dimension that a V is cut or joined along; negative ones count from the back.
        src_sizes, dst_sizes: by coordinate, or the whole extent, or None for the rule.

    Raises:
        UsageError: what the table or the axis does not admit.
    """
    who, ranks = f"{verb} on {axis}", over.size
    src, dst = checked_type(src, f"{who}, src"), checked_type(dst, f"{who}, dst")
    admit(verb, axis, src, dst, expert)
    op = admit_op(verb, axis, src, op, _OPS[verb]) if verb in _OPS else "sum"
    if not 0 <= root < ranks:
        raise UsageError(f"{who}: root={root}", want=f"a coordinate from 0 to {ranks - 1}")
    ask = Ask(verb, axis, ranks, src, dst, op, root=root)
    if not _joins(ask) and not _cuts(ask):
        return move(ask)

    def of_shape(shape: torch.Size) -> Move:
        dims = [_in_range(dim if t.dim is None else t.dim, shape, who) for t in (src, dst)]
        here = replace(ask, src_dim=dims[0], dst_dim=dims[1])
        sizes = _sizes(here, shape, src_sizes, dst_sizes, who)
        return move(replace(here, src_sizes=sizes[0], dst_sizes=sizes[1]))

    return of_shape


def _joins(ask: Ask) -> bool:
    """Whether the input is one rank's part of a dimension."""
    return ask.verb in ("all_gather", "all_to_all", "convert") and ask.src.kind in "VS"


def _cuts(ask: Ask) -> bool:
    """Whether the output is one rank's part of a dimension."""
    return ask.verb in ("reduce_scatter", "all_to_all", "convert") and ask.dst.kind in "VS"


def _sizes(
    ask: Ask, shape: torch.Size, sent: Given, received: Given, who: str
) -> tuple[Sizes, Sizes]:
    if ask.verb == "all_to_all" and ask.src.kind == "V":
        return _exchanged(shape[ask.src_dim], ask, sent, received, who)
    if _joins(ask) and _cuts(ask) and ask.src_dim == ask.dst_dim:
        raise UsageError(f"{who}: both sides shard dimension {ask.src_dim}")
    return (
        _joined(shape[ask.src_dim], ask, sent, who) if _joins(ask) else (),
        _cut(shape[ask.dst_dim], ask.size, received, who) if _cuts(ask) else (),
    )


def _in_range(dim: int, shape: torch.Size, who: str) -> int:
    if not -len(shape) <= dim < len(shape):
        raise UsageError(
            f"{who}: dimension {dim} of a tensor of shape {list(shape)}",
            fix="unsqueeze(0) it first" if not len(shape) else None,
        )
    return dim % len(shape)


def _cut(extent: int, ranks: int, given: Given, who: str) -> Sizes:
    """How much of a whole dimension each rank gets: by `torch.tensor_split`'s rule, or as given."""
    sizes = _split(extent if given is None else given, ranks, who)
    if given is not None and _known(*sizes, extent) and sum(sizes) != extent:
        raise UsageError(
            f"{who}: sizes {list(sizes)} of a dimension of {extent}",
            want=f"sizes that add up to {extent}; none given are shared out as tensor_split does",
        )
    return sizes


def _joined(own: int, ask: Ask, given: Given, who: str) -> Sizes:
    """How much each rank holds: all as much as this one, or as given."""
    if given is None:
        return (own,) * ask.size
    sizes = _split(given, ask.size, who)
    if _known(own, *sizes) and own != sizes[coordinate(ask.axis)]:
        raise UsageError(
            f"{who}: this rank holds {own} of a dimension shared out as {list(sizes)}",
            want=f"{sizes[coordinate(ask.axis)]}, at coordinate {coordinate(ask.axis)}",
        )
    return sizes


def _split(given: int | Sizes, ranks: int, who: str) -> Sizes:
    if isinstance(given, tuple):
        if len(given) != ranks or (_known(*given) and min(given) < 0):
            raise UsageError(f"{who}: sizes {list(given)}", want=f"{ranks} sizes, one a rank")
        return given
    base, more = divmod(given, ranks)
    return tuple(base + 1 if rank < more else base for rank in range(ranks))


def _known(*sizes: int) -> bool:
    """Whether none is symbolic: of those, nothing may be asked while a step is captured."""
    return all(type(n) is int for n in sizes)


def _exchanged(
    extent: int, ask: Ask, sent: Given, received: Given, who: str
) -> tuple[Sizes, Sizes]:
    if sent is None and received is None:
        if extent % ask.size:
            raise UsageError(
                f"{who}: {extent} rows do not share out evenly over {ask.size} ranks",
                fix="input_splits=[...], output_splits=[...]: rows to and from each rank",
            )
        return (extent // ask.size,) * ask.size, (extent // ask.size,) * ask.size
    if not isinstance(sent, tuple) or not isinstance(received, tuple):
        raise UsageError(f"{who}: one of input_splits and output_splits", want="both, as lists")
    _split(received, ask.size, who)
    return _cut(extent, ask.size, sent, who), received
