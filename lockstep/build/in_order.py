"""Messages and collectives in the order of the step, whatever a compiler makes of the rest.

A rank that waits must have sent before all that it sends before: else two ranks wait for each
other. Messages take what the one before gave; here collectives are tied to them, and the last
message is returned, so that none is dropped.
"""

from __future__ import annotations

from typing import Any

from lockstep.spmd.point_to_point import BEHIND, RECV, SEND, SETTLE

_MESSAGES = (SEND, RECV, SETTLE)
FUNCTIONAL = "_c10d_functional"


def messages(graph: Any) -> list[Any]:
    """The messages of a graph in order."""
    return [node for node in graph.nodes if node.target in _MESSAGES]


def tie(graph: Any) -> None:
    """Put what a compiler may not see into the graph: which call comes after which.

    A collective starts after the messages before it; a message waits after the collectives before
    it have started. A graph without messages is left as it is.
    """
    last, started = None, list[Any]()
    for node in list(graph.nodes) if messages(graph) else ():
        if node.target in _MESSAGES:
            if started:
                node.update_arg(1, _behind(graph, node, node.args[1], started))
            last, started = node, []
        elif _starts(node):
            if last is not None:
                node.update_arg(0, _behind(graph, node, node.args[0], [last]))
            started.append(node)


def _starts(node: Any) -> bool:
    functional = getattr(node.target, "namespace", "") == FUNCTIONAL
    return functional and "wait_tensor" not in str(node.target)


def _behind(graph: Any, node: Any, x: Any, after: list[Any]) -> Any:
    """A copy of `x`, made before `node`, that is there after others; of nothing an empty one."""
    import torch

    with graph.inserting_before(node):
        if x is None:
            value = node.args[0].meta["val"]
            options = {"dtype": value.dtype, "device": value.device}
            x = graph.call_function(torch.ops.aten.empty.memory_format, ([0],), options)
            x.meta["val"] = value.new_empty(0)
        made = graph.call_function(BEHIND, (x, after))
        made.meta["val"] = x.meta["val"]
    return made
