"""Branches on the rank whose sides differ in what is told alone: both are traced, and compared.

A trace is taken to be at one place of the mesh, and Python's decisions on the rank are answered for
it and noted. The places that decide otherwise are traced too, until each place is covered. Where
all traces are the same program but for their effects, that program holds the effects of each, with
the places that they are for; else the branch that the ranks part at is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.capture.coordinates import Decision
from lockstep.capture.emits import Emit, sampled
from lockstep.capture.graph import StepGraph
from lockstep.capture.likewise import Bare, difference, merge
from lockstep.capture.refusal import refuse
from lockstep.capture.shown import Marks, refuse_unused
from lockstep.errors import CaptureError, LockstepError
from lockstep.spmd.effects import Where
from lockstep.spmd.places import places_of

MOST_SIDES = 8  # traces of one step; a decision that parts the ranks further is refused
MOST_PLACES = 1 << 14


@dataclass
class Side:
    """A trace, with the decisions that lead to it.

    `places`: where it was taken to be; `failure`: what the step raised there.
    """

    decisions: list[Decision]
    places: dict[str, int] = field(default_factory=dict)
    graph: StepGraph | None = None
    marks: Marks | None = None
    failure: Exception | None = None
    bare: Any = field(default=None, repr=False)

    def covers(self, places: dict[str, int]) -> bool:
        """Whether a rank at these places takes this side."""
        return all(d.answer(places) == d.taken for d in self.decisions)


Trace = Callable[[dict[str, int], bool], Side]


def joined(first: Side, trace: Trace) -> StepGraph:
    """One graph for the ranks of all sides.

    Args:
        first: the side of the ranks at 0 everywhere.
        trace: traces the step once more, at other places, or with made-up text (True).

    Raises:
        CaptureError: the sides are different programs, at the line that the ranks part at; or what
            a side tells depends on more than values put into text.
    """
    assert first.graph is not None
    if first.marks is None or not (first.decisions or first.graph.emits or first.marks.any):
        return first.graph
    sides, places = _sides(first, trace)
    for side in sides[1:]:
        _refuse_unlike(first, side)
    refuse_unused([side.marks for side in sides if side.marks is not None])
    for side in sides:
        _refuse_other_text(side, trace)
    if len(sides) > 1:
        _put_together(sides, places)
    return first.graph


def _sides(first: Side, trace: Trace) -> tuple[list[Side], list[dict[str, int]]]:
    """All sides, and all places that their decisions tell apart."""
    sides = [first]
    while True:
        told = {pair for side in sides for d in side.decisions for pair in d.names.items()}
        sizes = dict(sorted(told))  # in one order on every rank
        places = places_of(sizes, MOST_PLACES)
        if places is None:
            raise sides[-1].decisions[-1].error
        left = [p for p in places if not any(side.covers(p) for side in sides)]
        if not left:
            return sides, places
        if len(sides) == MOST_SIDES:
            raise sides[-1].decisions[-1].error
        side = trace(left[0], False)
        if side.failure is not None:
            raise _parting(first, side).error from side.failure
        sides.append(side)


def _parting(first: Side, other: Side) -> Decision:
    """The first decision that the two sides answer differently."""
    pairs = zip(first.decisions, other.decisions, strict=False)
    found = next((one for one, two in pairs if one.taken != two.taken), None)
    return found or first.decisions[-1]


def _refuse_unlike(first: Side, other: Side) -> None:
    assert first.graph is not None and other.graph is not None
    first.bare, other.bare = first.bare or Bare(first.graph), Bare(other.graph)
    told = difference(first.bare, other.bare)
    if told is None:
        return
    parting = _parting(first, other)
    error, places = parting.error, [_said(side.places, parting.names) for side in (first, other)]
    got = [error.got, *(f"{place}: {what}" for place, what in zip(places, told, strict=True))]
    refuse(
        CaptureError(
            error.what,
            where=error.where,
            got="\n".join(filter(None, got)),
            why=error.why,
            fix=error.fixes,
        )
    )


def _said(places: dict[str, int], names: Iterable[str]) -> str:
    """A place as a message says it: "rank 1", "tp 0, dp 1"."""
    words = [f"{name.replace('world', 'rank')} {places.get(name, 0)}" for name in names]
    return ", ".join(words)


def _refuse_other_text(side: Side, trace: Trace) -> None:
    """Trace a side that makes text of values again, with made-up ones, and compare what is told."""
    if not side.graph or not (side.graph.emits or (side.marks is not None and side.marks.any)):
        return
    again = trace(side.places, True)
    if again.failure is not None:
        if isinstance(again.failure, LockstepError):
            raise again.failure
        refuse(_looks_at_text(_first_line(side), str(again.failure)))
        return
    assert again.graph is not None
    mine, its = side.graph.emits, again.graph.emits
    for one, other in itertools.zip_longest(mine, its):
        if one is None or other is None or _told(one) != _told(other):
            at = one or other
            refuse(_looks_at_text(at.line, _shown(one, other)))
            return
    told = difference(Bare(side.graph, whole=True), Bare(again.graph, whole=True))
    if told is not None:
        refuse(_looks_at_text(_first_line(side), " / ".join(told)))


def _first_line(side: Side) -> str:
    """Where a side first tells something, or makes text."""
    lines = [emit.line for emit in side.graph.emits] if side.graph is not None else []
    return next(iter([*lines, *(side.marks.lines if side.marks is not None else [])]), "")


def _told(emit: Emit) -> Any:
    return emit.do, sampled(emit.what), emit.line, emit.name


def _shown(one: Emit | None, other: Emit | None) -> str:
    texts = [_text(sampled(emit.what)) if emit is not None else "nothing" for emit in (one, other)]
    return f"{texts[0][:150]!r}\nonce more: {texts[1][:150]!r}"


def _text(what: Any) -> str:
    """The words in what is told, short."""
    if not isinstance(what, list):
        return "" if what is None else str(what)
    inner = what[1:] if what[:1] in (["text"], ["value"]) else what
    return " ".join(filter(None, map(_text, inner)))


def _looks_at_text(line: str, got: str) -> CaptureError:
    return CaptureError(
        "what the step tells is not the same each time it is captured",
        where=line,
        got=got,
        why="a program tells what was captured: a clock, a counter, or text that depends on the "
        "length or the words of another would be frozen",
        fix=[
            'put values into text by their formats alone: f"{loss.item():>10.3f}"',
            "ls.on_rank(0, callback, loss): the callback is ordinary Python, run at each step",
        ],
    )


def _put_together(sides: list[Side], places: list[dict[str, int]]) -> None:
    """Give the first side's graph the effects of all, each for the ranks of its side."""
    first = sides[0].graph
    assert first is not None
    emits = _for_ranks(first.emits, sides[0], places)
    for side in sides[1:]:
        assert side.graph is not None
        if side.graph.emits:
            own = merge(sides[0].bare, side.bare)
            emits += _for_ranks(own, side, places)
    first.emits = emits


def _for_ranks(emits: Iterable[Emit], side: Side, places: list[dict[str, int]]) -> list[Emit]:
    inside = [tuple(p.values()) for p in places if side.covers(p)]
    outside = [tuple(p.values()) for p in places if not side.covers(p)]
    fewer = inside if len(inside) <= len(outside) else outside
    where = Where(tuple(places[0]), tuple(fewer), fewer is inside)
    return [replace(emit, where=(*emit.where, where)) for emit in emits]
