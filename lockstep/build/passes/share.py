"""Keeps every bit: what is computed twice of the same values is computed once.

Two calls are one where operator, arguments, and what lies in the memories that they read are the
same. Draws, writes and collectives stay as they are, and so does what is written to or handed out:
two tensors must not become one. The backward keeps what it computes anew: it does so for memory.
"""

from __future__ import annotations

from typing import Any

from lockstep.build.outline.nodes import calls, is_view, phase, stays, written
from lockstep.build.passes.order import memory


def shared(graph: Any) -> int:
    """Let equal calls be one; changes the graph.

    Returns:
        How many calls are gone.
    """
    import torch

    apart = {memory(one) for node in calls(graph) for one in written(node)}
    apart |= {memory(one) for one in graph.output_node().all_input_nodes}
    versions: dict[Any, int] = {}
    known: dict[Any, Any] = {}
    gone = 0

    def told(one: Any) -> Any:
        return _Told((one.name, versions.get(memory(one), 0)))

    for node in calls(graph):
        for one in written(node):
            versions[memory(one)] = versions.get(memory(one), 0) + 1
        if stays(node) or (memory(node) in apart and not is_view(node)):
            continue
        given = torch.fx.node.map_arg((node.args, node.kwargs), told)
        first = known.setdefault((str(node.target), repr(given), phase(node)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
            gone += not is_view(first)
    return gone


class _Told(tuple[Any, ...]):
    """What stands for a node in the text of an argument."""

    __slots__ = ()
