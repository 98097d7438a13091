"""A pass that lowers the peak of memory: what the backward can compute anew for free is not kept.

A pointwise value of the forward whose inputs the backward reads too, is computed again where the
backward first reads it. The bits are the same, for it is the same operator on the same inputs. Half
precision is left alone: a compiler may leave a value that it fuses unrounded, one that is kept not.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any

from lockstep.build.outline.nodes import calls, is_same, is_scalar, is_view, phase, written
from lockstep.build.outline.proof import proved
from lockstep.capture.origin import META

SAME = "def call(inputs):\n    return body_0(inputs)\n"


def recomputed(gm: Any) -> tuple[Any, int]:
    """Return a graph whose backward computes anew what it can, and how many values those are.

    Args:
        gm: a flat graph of operators, forward and backward; it is not changed.

    Returns:
        The graph, proved to compute what `gm` does; `gm` itself and 0 where nothing is gained.
    """
    import torch

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    count = _Pass(graph).run()
    made = torch.fx.GraphModule({}, graph)
    return (made, count) if count and proved(gm, [made], SAME) else (gm, 0)


class _Pass:
    """One pass over a graph, which it changes."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._order = {node: at for at, node in enumerate(graph.nodes)}
        self._writes: dict[Any, list[int]] = {}
        for node in calls(graph):
            for target in written(node):
                self._writes.setdefault(_memory(target), []).append(self._order[node])
        # The forward's values that the backward reads, and where it first does.
        self._first: dict[Any, Any] = {}
        for node in calls(graph):
            if phase(node) == "backward":
                for value in map(_memory, node.all_input_nodes):
                    if phase(value) == "forward":
                        self._first.setdefault(value, node)
        self._fresh: dict[Any, Any] = {}

    def run(self) -> int:
        values = sorted(self._first, key=self._order.__getitem__)
        chosen = {value for value in values if self._is_free(value)}
        for node in calls(self._graph):
            if node in self._order and phase(node) == "backward":
                for value in node.all_input_nodes:
                    if _memory(value) in chosen:
                        node.replace_input_with(value, self._anew(value, node, chosen))
        return len(chosen)

    def _is_free(self, value: Any) -> bool:
        """Whether a value can be computed anew of what is there anyway."""
        place = self._order[self._first[value]]
        return (
            _is_exact(value)
            and value not in self._writes
            and all(self._at_hand(one, value, place) for one in value.all_input_nodes)
        )

    def _at_hand(self, node: Any, value: Any, place: int) -> bool:
        """Whether an input is there at a place, as it was when the value was made of it."""
        if is_scalar(node):
            return True
        node = _memory(node)
        writes = self._writes.get(node, [])
        unwritten = bisect_right(writes, self._order[value]) == bisect_right(writes, place)
        return unwritten and (node.op == "placeholder" or node in self._first)

    def _anew(self, node: Any, user: Any, chosen: set[Any]) -> Any:
        """The node that stands for another in the backward; made right before its first user."""
        if _memory(node) not in chosen:
            return node
        if node not in self._fresh:
            inputs = {one: self._anew(one, user, chosen) for one in node.all_input_nodes}
            with self._graph.inserting_before(user):
                made = self._graph.node_copy(node, inputs.__getitem__)
            if META in made.meta:
                made.meta[META] = replace(made.meta[META], phase="backward")
            self._fresh[node] = made
        return self._fresh[node]


def _memory(node: Any) -> Any:
    """The node that made what another is a view or a further name of."""
    while is_view(node) or (node.op == "call_function" and is_same(node)):
        node = node.args[0]
    return node


def _is_exact(node: Any) -> bool:
    """Whether a call gives the same bits wherever it is made: pointwise, drawing nothing."""
    import torch

    tags = getattr(node.target, "tags", ())
    value = node.meta.get("val")
    return (
        torch.Tag.pointwise in tags
        and torch.Tag.nondeterministic_seeded not in tags
        and not is_view(node)
        and not written(node)
        and isinstance(value, torch.Tensor)
        and value.dtype not in (torch.bfloat16, torch.float16)
    )
