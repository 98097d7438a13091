"""How many bytes of its own values a graph holds at each call: what it is given is left out."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from lockstep.build.outline.nodes import calls, is_same, is_view
from lockstep.build.passes.collectives import is_start, is_wait, size_of
from lockstep.build.passes.order import memory


class Live:
    """The memories that a graph's calls make: where each is made, and where it is read.

    A view reads nothing: who reads the view reads what it is a view of. A collective reads its
    input until it is waited for. What is returned is read at the end.

    Args:
        graph: flat; looked at once, as it is now.
    """

    def __init__(self, graph: Any) -> None:
        nodes = calls(graph)
        self.place = {node: at for at, node in enumerate([*nodes, graph.output_node()])}
        self.reads: dict[Any, list[int]] = {}
        for node, at in self.place.items():
            if is_view(node) or (node.op == "call_function" and is_same(node)):
                continue
            self.reads.setdefault(node, [])
            starts = [one for one in node.all_input_nodes if is_wait(node) and is_start(one)]
            for reader in (node, *starts):
                for one in dict.fromkeys(map(memory, reader.all_input_nodes)):
                    self.reads.setdefault(one, []).append(at)
        changes = [0] * (len(self.place) + 1)
        for node, reads in self.reads.items():
            if node.op == "call_function":
                changes[self.place[node]] += size_of(node) or 0
                changes[max(reads, default=self.place[node]) + 1] -= size_of(node) or 0
        self.bytes = list(accumulate(changes))[:-1]

    @property
    def peak(self) -> int:
        """The place where most bytes are held; the last such."""
        return max(range(len(self.bytes)), key=lambda at: (self.bytes[at], at))

    def over(self, limit: int) -> int:
        """By how much a limit is passed, summed over all places."""
        return sum(max(0, held - limit) for held in self.bytes)

    def until(self, node: Any) -> int:
        """The last place where a memory is read."""
        return max(self.reads.get(node, ()), default=self.place.get(node, 0))

    def gap(self, node: Any, at: int) -> int | None:
        """Where a memory that is held at a place, and not read there, is read next."""
        made, reads = self.place.get(node, at), self.reads[node]
        if made >= at or at in reads:
            return None
        return next((place for place in reads if place > at), None)
