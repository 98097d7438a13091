"""Keeps every bit: what a budget of memory has no room for is computed anew in the backward.

While the step holds more bytes than it may, values of the forward that are held where it holds
most are given up, and made again right before the backward reads them: first those which give the
most room for the least work, and all of a kind together, so that layers stay alike. Products,
copies and pointwise operators give the same bits wherever they run. Draws, collectives and sums are
kept, and so are pointwise values in half precision: a compiler may leave what it fuses unrounded.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from lockstep.build.outline.nodes import (
    CUT,
    calls,
    is_same,
    is_scalar,
    is_view,
    looks,
    phase,
    stays,
    written,
)
from lockstep.build.passes.collectives import size_of
from lockstep.build.passes.live import Live
from lockstep.build.passes.order import memory
from lockstep.capture.origin import META

_COPIES = [
    getattr(torch.ops.aten, name) for name in ("_unsafe_view", "clone", "stack", "cat", "embedding")
]
_FLOPS_A_BYTE = 50  # work that takes about as long as reading or writing one byte


@dataclass(frozen=True)
class Plan:
    """How a value is made anew.

    Args:
        value: the call that made it.
        again: the calls that run again, in order; the value's own is the last.
        reads: the memories that those read.
        place: where it is read first after the peak.
    """

    value: Any
    again: tuple[Any, ...]
    reads: frozenset[Any]
    place: int

    @property
    def kind(self) -> Any:
        """Equal for values that are made alike."""
        return looks(self.value.meta["val"]), tuple(str(node.target) for node in self.again)

    @property
    def work(self) -> float:
        return sum(map(_work, self.again))


def within(graph: Any, limit: int) -> int:
    """Compute values anew until a graph's own values fit, or nothing helps; changes the graph.

    Args:
        limit: bytes that values which the step makes may take at once.

    Returns:
        How many calls run again.
    """
    made = _Again(graph)
    live, futile, count = Live(graph), set[Any](), 0
    while live.over(limit):
        kinds: dict[Any, list[Plan]] = {}
        for plan in made.plans(live):
            kinds.setdefault(plan.kind, []).append(plan)
        left = [kind for kind in kinds if kind not in futile]
        best = max(left, key=lambda kind: _worth(kinds[kind]), default=None)
        if best is None:
            break
        done = made.run(kinds[best], live)
        now = Live(graph)
        if now.over(limit) < live.over(limit):
            live, count = now, count + sum(len(one.made) for one in done)
        else:
            made.undo(done)
            futile.add(best)
    made.keep_apart()
    return count


@dataclass(frozen=True)
class Done:
    """What `run` did: the calls that are new, and of which user an input is another now."""

    made: list[Any]
    swapped: list[tuple[Any, Any, Any]]


class _Again:
    """The values of a graph, and what stands for them after a peak."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._copies: dict[Any, list[Any]] = {}  # a value -> what was made anew of it
        self._writes: dict[Any, list[Any]] = {}
        for node in calls(graph):
            for one in written(node):
                self._writes.setdefault(memory(one), []).append(node)

    def plans(self, live: Live) -> Iterable[Plan]:
        """How each value of the forward that is held at the peak, unread, could be made anew."""
        peak, end = live.peak, len(live.place) - 1
        for node, read in live.reads.items():
            place = live.gap(node, peak) if phase(node) == "forward" else None
            if place is not None and end not in read:
                again, reads = dict[Any, None](), set[Any]()
                if self._makes(node, place, live, again, reads):
                    yield Plan(node, tuple(again), frozenset(reads), place)

    def run(self, plans: list[Plan], live: Live) -> list[Done]:
        """Make values anew, but those that others are made of."""
        users = {at: node for node, at in live.place.items()}
        kept: set[Any] = set()
        done = []
        for plan in sorted(plans, key=lambda plan: plan.place):
            if plan.value not in kept:
                kept |= plan.reads
                done.append(self._swap(plan, users[plan.place], live))
        return done

    def keep_apart(self) -> None:
        """Cut the program before what is made anew first: a compiler would make both at once."""
        copies = {node for nodes in self._copies.values() for node in nodes}
        for first in [node for node in calls(self._graph) if node in copies][:1]:
            first.meta[CUT] = True

    def undo(self, done: list[Done]) -> None:
        """Take back what `run` did last."""
        for one in reversed(done):
            for user, was, now in reversed(one.swapped):
                user.replace_input_with(now, was)
            for node in reversed(one.made):
                self._graph.erase_node(node)
                for copies in self._copies.values():
                    if node in copies:
                        copies.remove(node)

    def _makes(
        self, node: Any, place: int, live: Live, again: dict[Any, None], reads: set[Any]
    ) -> bool:
        """Whether a memory can be made anew at a place; notes by which calls, and of what."""
        if not _is_exact(node) or node in self._writes:
            return False
        for one in dict.fromkeys(memory(n) for n in node.all_input_nodes if not is_scalar(n)):
            source = self._there(one, place, live)
            if source is not None and self._is_unwritten(one, node, place, live):
                reads.add(source)
            elif one not in again and not self._makes(one, place, live, again, reads):
                return False
        again[node] = None
        return True

    def _there(self, node: Any, place: int, live: Live) -> Any:
        """What holds a value at a place, without being held for it; None where nothing does."""
        if node.op != "call_function":
            return node
        held = (one for one in (*self._copies.get(node, ()), node) if one in live.place)
        return next((one for one in held if live.place[one] < place <= live.until(one)), None)

    def _is_unwritten(self, node: Any, reader: Any, place: int, live: Live) -> bool:
        return not any(
            live.place[reader] < live.place[one] < place for one in self._writes.get(node, ())
        )

    def _swap(self, plan: Plan, user: Any, live: Live) -> Done:
        """Make one value anew right before a call, for it and all that come after it."""
        stands: dict[Any, Any] = {}
        made: list[Any] = []

        def stand(node: Any) -> Any:
            """What stands for a node from here on, made anew where it has to be."""
            if is_scalar(node) or node in stands:
                return stands.get(node, node)
            source = memory(node)
            if source is not node:  # a view: of what stands for it
                return node if stand(source) is source else copy(node)
            held = self._there(node, plan.place, live) if node not in plan.again else None
            return copy(node) if held is None else held

        def copy(node: Any) -> Any:
            inputs = {one: stand(one) for one in node.all_input_nodes}
            with self._graph.inserting_before(user):
                now = self._graph.node_copy(node, inputs.__getitem__)
            if META in now.meta:
                now.meta[META] = replace(now.meta[META], phase="backward")
            stands[node] = now
            made.append(now)
            self._copies.setdefault(node, []).append(now)
            return now

        stand(plan.value)
        swapped = [(one, was, stand(was)) for one, was in _uses(plan.value, plan.place, live)]
        for one, was, now in swapped:
            one.replace_input_with(was, now)
        return Done(made, swapped)


def _uses(node: Any, place: int, live: Live) -> list[tuple[Any, Any]]:
    """Who reads a value or a view of it from a place on, each with what it reads."""
    found = []
    for user in node.users:
        if live.place.get(user, -1) >= place:
            found.append((user, node))
        elif is_view(user) or (user.op == "call_function" and is_same(user)):
            found += _uses(user, place, live)
    return found


def _worth(plans: list[Plan]) -> float:
    """Bytes that a kind gives up, for its work."""
    return sum(size_of(plan.value) or 0 for plan in plans) / sum(plan.work for plan in plans)


def _work(node: Any) -> float:
    """Bytes that a call reads and writes, and what it computes, as bytes."""
    moved = sum(size_of(one) or 0 for one in (node, *node.all_input_nodes))
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 1.0 + moved
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return moved + formula(*args, **kwargs, out_val=node.meta["val"]) / _FLOPS_A_BYTE


def _is_exact(node: Any) -> bool:
    """Whether a call gives the same bits wherever it is made, however it is compiled."""
    if node.op != "call_function" or stays(node) or is_view(node):
        return False
    if node.target is operator.getitem:
        return _is_exact(node.args[0])
    called = getattr(node.target, "overloadpacket", None)
    if called in flop_registry or called in _COPIES:
        return True
    value = node.meta.get("val")
    exact = isinstance(value, torch.Tensor) and value.dtype not in (torch.bfloat16, torch.float16)
    return exact and torch.Tag.pointwise in getattr(node.target, "tags", ())
