"""A graph in the form that repeats are found in: one name a value, scalars as early as can be."""

from __future__ import annotations

from typing import Any

from lockstep import _compat
from lockstep.build.outline.nodes import (
    FREE,
    base,
    calls,
    is_same,
    is_scalar,
    is_size,
    stays,
    written,
)


def normalised(gm: Any) -> Any:
    """Copy a graph, with one name for each value and one node for each shared scalar."""
    import torch

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in calls(graph):
        if is_same(node):
            # An in-place operator's result is the tensor that it wrote.
            node.replace_all_uses_with(node.args[0])
            if not stays(node):
                graph.erase_node(node)
    _share_scalars(graph)
    return graph


def _share_scalars(graph: Any) -> None:
    """Merge equal scalars, and compute each right after what it needs.

    Each layer's own would make its body differ. Those that read what nothing writes any more are
    marked: a later part may compute them anew.
    """
    ready = dict.fromkeys(graph.find_nodes(op="placeholder"))  # input -> who writes it last
    if not ready:
        return
    top = next(reversed(ready))
    for node in calls(graph):
        ready.update((target, node) for target in map(base, written(node)) if target in ready)
    order = {node: at for at, node in enumerate(graph.nodes)}
    order |= {node: -1 for node in ready}
    seen: dict[Any, Any] = {}
    for node in calls(graph):
        if not is_scalar(node):
            continue
        key, needs = _key(node), [ready[one] or one for one in node.all_input_nodes if one in ready]
        late = any(order[one] > order[node] for one in needs)
        free = not late and len(needs) == len(node.all_input_nodes)
        if key in seen and (free or is_size(node.meta["val"])):
            node.replace_all_uses_with(seen[key])
            graph.erase_node(node)
        elif free:
            last = max(needs, key=order.__getitem__, default=top)
            place = last if order[last] >= 0 else top
            place.append(node)
            top = node if place is top else top
            order[node] = order[last]
            ready[node], node.meta[FREE], seen[key] = None, True, node
        elif is_size(node.meta["val"]):
            seen[key] = node


def _key(node: Any) -> Any:
    """What is equal of equal scalars. Floats are not told by their formula: it has lost the order
    of its operations, which rounds."""
    value = node.meta["val"]
    return (
        str(_compat.expression(value))
        if is_size(value)
        else (node.target, str((node.args, node.kwargs)))
    )
