"""What goes from part to part: as little as can be, and never a view.

A view is made anew by the part that reads it, so that no body gets two names of one memory. So is
a cheap value that a compiler would have made anew in its place: a body would have to keep it.
"""

from __future__ import annotations

from typing import Any

from lockstep.build.outline.cheap import cheap_values
from lockstep.build.outline.nodes import FREE, is_size, is_view, stays


def settle(graph: Any, parts: list[list[Any]]) -> list[list[Any]]:
    """Make each part compute what is free to it; changes the graph.

    Returns:
        The parts as they are now; the last has the views that the graph itself returns.
    """
    settling = _Settling(graph, parts)
    for at, part in enumerate(parts):
        for node in part:
            settling.localise(node, at)
    settling.localise(graph.output_node(), len(parts))
    return settling.finished()


class _Settling:
    """Clones of free values, one for each part that reads them."""

    def __init__(self, graph: Any, parts: list[list[Any]]) -> None:
        self._graph = graph
        self._owner = {node: at for at, part in enumerate(parts) for node in part}
        self._cheap = cheap_values(graph, parts, self._owner)
        self._front = [part[0] for part in parts] + [graph.output_node()]
        self._new: list[list[Any]] = [[] for _ in self._front]
        self._parts = [*parts, []]
        self._clones: dict[tuple[Any, int], Any] = {}
        self._origin: dict[Any, Any] = {}

    def localise(self, node: Any, at: int) -> None:
        """Let a node of a part read what the part made itself."""
        import torch

        node.args, node.kwargs = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda value: self._local(value, at)
        )

    def _local(self, value: Any, at: int) -> Any:
        import torch

        if self._owner.get(value, at) == at:
            return value
        key = self._origin.get(value, value), at
        if key not in self._clones:
            if not self._is_free(*key):
                return value
            arguments = torch.fx.node.map_arg(
                (value.args, value.kwargs), lambda one: self._local(one, at)
            )
            with self._graph.inserting_before(self._front[at]):
                clone = self._graph.call_function(value.target, *arguments)
            clone.meta = dict(value.meta)
            self._clones[key], self._origin[clone], self._owner[clone] = clone, key[0], at
            self._new[at].append(clone)
        return self._clones[key]

    def _is_free(self, value: Any, at: int) -> bool:
        number = FREE in value.meta and not is_size(value.meta["val"])
        return number or is_view(value) or (value, at) in self._cheap

    def finished(self) -> list[list[Any]]:
        """Drop what nothing reads any more."""
        for node in reversed(list(self._graph.nodes)):
            if node.op == "call_function" and not node.users and not stays(node):
                self._graph.erase_node(node)
                del self._owner[node]
        whole = [[*new, *part] for new, part in zip(self._new, self._parts, strict=True)]
        kept = [[node for node in part if node in self._owner] for part in whole]
        return [part for part in kept if part]
