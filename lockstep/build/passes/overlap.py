"""Keeps every bit: collectives start as soon as their input is made, and are waited for late.

While one is under way the rest of the step goes on. The graph is put into another order, which is
one for all ranks; nothing else of it changes.
"""

from __future__ import annotations

from typing import Any

from lockstep.build.outline.nodes import calls
from lockstep.build.passes.collectives import is_start, is_wait, wait_of
from lockstep.build.passes.order import early, is_light, late


def overlapped(graph: Any, limit: int) -> int:
    """Put a graph's calls into the better order; changes the graph.

    Returns:
        How many collectives have something else going on beside them, that had less before.
    """
    was = _beside(graph)
    late(graph, limit)
    early(graph, limit)
    now = _beside(graph)
    return sum(now[start] > was[start] for start in now)


def _beside(graph: Any) -> dict[Any, int]:
    """For each collective, how many calls that cost something run while it is under way."""
    done: dict[Any, int] = {}
    heavy = 0
    for node in calls(graph):
        done[node] = heavy
        heavy += not is_light(node) and not is_start(node) and not is_wait(node)
    ends = {start: wait_of(start) for start in done if is_start(start)}
    return {start: done[end] - done[start] for start, end in ends.items() if end is not None}
