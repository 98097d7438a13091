"""Adjacent repeats in a sequence of calls, and where one repeat ends and the next begins.

The same layer traced twice gives the same calls in the same order. No module's name and no mark of
a user is looked at, so that a backward, a reduction and an optimizer are found as a forward is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.build.outline.nodes import CUT, FREE, base, calls, looks, may_cross
from lockstep.build.passes.collectives import is_start, is_wait
from lockstep.build.passes.order import is_light

LEAST = 12  # calls in a repeat: of fewer, a call of a body costs more than it saves
LEAST_SAVED = 24  # calls that a run of repeats saves
_WINDOW = 6  # calls by which a place is known again

Tokens = Any  # one integer a call


@dataclass(frozen=True)
class Run:
    """`count` adjacent repeats of `period` calls from `start` on, which may begin up to `slack`
    later: the calls repeat that much beyond the last."""

    start: int
    period: int
    count: int
    slack: int

    @property
    def saved(self) -> int:
        """How many calls need not be compiled."""
        return (self.count - 1) * self.period


def segments(graph: Any) -> list[list[Any]]:
    """Cut a normalised graph's calls into repeats and what lies between, in order."""
    nodes = calls(graph)
    scalars = list(itertools.takewhile(lambda node: FREE in node.meta, nodes))
    nodes = nodes[len(scalars) :]
    cuts = {0, len(nodes), *_kept_apart(nodes)}
    for run in find_runs(tokens(nodes)):
        start = _best_start(nodes, run)
        if start is not None:
            cuts.update(range(start, start + run.count * run.period + 1, run.period))
    return _parts(scalars, nodes, cuts)


def apart(graph: Any) -> list[list[Any]]:
    """Cut a normalised graph's calls where a pass needs their order alone, as `segments` does."""
    nodes = calls(graph)
    return _parts([], nodes, {0, len(nodes), *_kept_apart(nodes)})


def _parts(scalars: list[Any], nodes: list[Any], cuts: set[int]) -> list[list[Any]]:
    parts = [nodes[a:b] for a, b in itertools.pairwise(sorted(cuts))]
    return [part for part in [scalars, *parts] if part]


def _kept_apart(nodes: list[Any]) -> set[int]:
    """Cuts after each start and before each wait that have something between them; and those asked
    for.

    A compiler puts the calls of one body into an order of its own.
    """
    heavy = [
        0,
        *itertools.accumulate(not (is_light(n) or is_start(n) or is_wait(n)) for n in nodes),
    ]
    order = {node: at for at, node in enumerate(nodes)}
    found = {at for at, node in enumerate(nodes) if CUT in node.meta}
    for at, node in enumerate(nodes):
        begin = order.get(node.args[0]) if is_wait(node) else None
        if begin is not None and heavy[at] > heavy[begin]:
            found.add(begin + 1)
            if heavy[at] > heavy[max((cut for cut in found if cut <= at), default=0)]:
                found.add(at)
    return found


def tokens(nodes: list[Any]) -> Tokens:
    """Return a number for each call; equal for the same operator on tensors of the same looks."""
    table: dict[Any, int] = {}
    return np.array([table.setdefault(_token(node), len(table)) for node in nodes], np.int64)


def _token(node: Any) -> Any:
    import torch

    def shown(value: Any) -> Any:
        return _Shown(looks(value.meta.get("val")))

    arguments = torch.fx.node.map_arg((node.args, node.kwargs), shown)
    return (str(node.target), repr(arguments), looks(node.meta.get("val")))


class _Shown(str):
    """What stands for a node in the text of an argument."""

    def __new__(cls, value: Any) -> _Shown:
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return str.__str__(self)


def find_runs(found: Tokens) -> list[Run]:
    """Return runs that do not overlap, the one that saves most first.

    Example:
        >>> find_runs(np.array([9, *range(20), *range(20), *range(20), 8]))
        [Run(start=1, period=20, count=3, slack=0)]
    """
    taken = np.zeros(len(found), bool)
    runs: list[Run] = []
    periods = _periods(found)
    while True:
        best = max(_runs(found, taken, periods), key=lambda run: run.saved, default=None)
        if best is None or best.saved < LEAST_SAVED:
            return runs
        taken[best.start : best.start + best.count * best.period + best.slack] = True
        runs.append(best)


def _periods(found: Tokens) -> list[int]:
    """Distances at which a few calls come again: all others need not be tried."""
    if len(found) < 2 * LEAST:
        return []
    windows = np.lib.stride_tricks.sliding_window_view(found, _WINDOW)
    _, names = np.unique(windows, axis=0, return_inverse=True)
    order = np.argsort(names.ravel(), kind="stable")
    same = names.ravel()[order][1:] == names.ravel()[order][:-1]
    distances, counts = np.unique(np.diff(order)[same], return_counts=True)
    often = (distances >= LEAST) & (counts > LEAST - _WINDOW)
    return [int(distance) for distance in distances[often]]


def _runs(found: Tokens, taken: Any, periods: list[int]) -> Iterator[Run]:
    for period in periods:
        same = (found[:-period] == found[period:]) & ~taken[:-period] & ~taken[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], same.astype(np.int8), [0]))))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            count = (end - begin) // period + 1
            if count > 1 and not taken[begin : begin + count * period].any():
                yield Run(begin, period, count, (end - begin) % period)


def _best_start(nodes: list[Any], run: Run) -> int | None:
    """Where the fewest values go from one repeat to another; None where no cut is allowed."""
    middle = run.count // 2 * run.period
    starts = range(run.start, run.start + run.slack + 1)

    def cost(start: int) -> int:
        return len(crossing(nodes[start + middle : start + middle + run.period]))

    for start in sorted(starts, key=cost):
        ends = range(start, start + run.count * run.period, run.period)
        if all(may_cross(v) for a in ends for v in crossing(nodes[a : a + run.period])):
            return start
    return None


def crossing(part: list[Any]) -> set[Any]:
    """Return the values that go into a part or out of it, views as what they are of.

    Inputs of the graph and scalars that are known everywhere cost nothing, and are left out.
    """
    inside = set(part)
    found = {base(a) for node in part for a in node.all_input_nodes} - inside
    found |= {base(n) for n in part if any(user not in inside for user in n.users)} & inside
    return {n for n in found if n.op == "call_function" and FREE not in n.meta}
