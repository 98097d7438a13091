"""In-place writes: what a buffer is after one, and what its other views are."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from torch.fx import Node

from lockstep.capture.schemas import written_arguments
from lockstep.checker.inference.kinds import PARTIAL, UNKNOWN, VARYING, Kind
from lockstep.checker.inference.rules.context import Context, bind, shape_of
from lockstep.checker.inference.rules.registry import rule
from lockstep.checker.inference.rules.views import reshaped

WHOLE_VIEWS = ("view", "_unsafe_view", "alias", "detach", "reshape")


@rule("copy")
def _copy(ctx: Context) -> Kind:
    source = ctx.get("src")
    if source is None:
        return ctx.operands[0].kind
    kind, base = source.kind, ctx.operands[0].kind
    spread = len(ctx.shape) - source.ndim
    alone = base.tag == "S" and (base.dim < spread or source.shape[base.dim - spread] == 1)
    if alone and kind.same:
        return base  # one row for all of them: each rank fills its own
    return replace(kind, dim=kind.dim + spread) if kind.tag == "S" else kind


@rule("set", "resize")
def _set(ctx: Context) -> Kind:
    return ctx.operands[-1].kind


def written_nodes(node: Node) -> list[Node]:
    """Return the nodes whose memory a node writes."""
    bound = bind(node)
    found: list[Any] = []
    for name in written_arguments(node.target):
        value = bound.get(name)
        found += value if isinstance(value, (list, tuple)) else [value]
    return [value for value in found if isinstance(value, Node)]


def under_view(new: Kind, view: Node, base: Node, whole: bool) -> Kind | None:
    """What all of `base` is, if all of it was written through this view; None if it was not.

    Args:
        whole: whether each view on the way holds all elements of what it views.
    """
    if not whole:
        return None
    if new.tag != "S" or shape_of(view) == shape_of(base):
        return new
    found = reshaped(new, shape_of(view), shape_of(base))
    return replace(VARYING) if found is None else replace(new, dim=found[0], before=found[1])


def covers(view: Node, base: Node) -> bool:
    """Whether a view holds as many elements as what it views."""
    return prod(shape_of(view)) == prod(shape_of(base))


def partly(old: Kind, new: Kind, own: bool) -> Kind:
    """What a buffer is after a part of it was written.

    Args:
        own: whether each rank wrote another part.
    """
    if "?" in old.tag + new.tag:
        return UNKNOWN
    blank = old.tag == "Z" or (old.flat and old.note == "empty")
    if own:
        return PARTIAL if old.tag in "ZP" and new.tag != "P" else VARYING
    if new.same:
        if old.tag in "EZ":
            return replace(old, tag="E", flat=False, note="") if new.tag == "E" else old
        return old if new.tag == "Z" or old.tag == "V" else VARYING if old.tag == "S" else UNKNOWN
    if blank or old == new:
        return UNKNOWN if new.tag == "S" else new  # what is written next decides
    return UNKNOWN if "P" in old.tag + new.tag else VARYING
