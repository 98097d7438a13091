"""What has to come before what in a graph, and its calls in another order that respects it.

A call reads memories and writes some: whoever reads what another writes stays on its side. Draws
and what else has an effect keep their order among themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lockstep.build.outline.nodes import calls, is_same, is_view, stays, written
from lockstep.build.passes.collectives import is_start, is_wait, kind, size_of


def memory(node: Any) -> Any:
    """The node that made the memory that a value lies in."""
    while node.op == "call_function" and (is_view(node) or is_same(node)):
        node = node.args[0]
    return node


def before(graph: Any) -> dict[Any, set[Any]]:
    """For each call, the calls that have to come before it; not what follows from those.

    A collective reads its input until it is waited for.
    """
    found: dict[Any, set[Any]] = {}
    writer: dict[Any, Any] = {}
    readers: dict[Any, list[Any]] = {}
    effect = None
    for node in calls(graph):
        needs = {one for one in node.all_input_nodes if one.op == "call_function"}
        started = [one for one in node.all_input_nodes if is_wait(node) and is_start(one)]
        reads = {memory(one) for start in (node, *started) for one in start.all_input_nodes}
        writes = {memory(one) for one in written(node)}
        needs |= {writer[one] for one in reads | writes if one in writer}
        for one in writes:
            needs.update(readers.pop(one, ()))
            writer[one] = node
        for one in reads - writes:
            readers.setdefault(one, []).append(node)
        if is_ordered(node):
            needs |= {effect} if effect is not None else set()
            effect = node
        found[node] = needs - {node}
    return found


def is_light(node: Any) -> bool:
    """Whether a call costs next to nothing beside a product or a sum: pointwise, a view, a copy."""
    import torch

    aten = torch.ops.aten
    copies = (aten.copy_.default, aten.cat.default, aten.split_with_sizes_copy.default)
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    takes = node.target in copies or getattr(node.target, "__name__", "") == "getitem"
    return not is_ordered(node) and (pointwise or takes or is_view(node) or is_same(node))


def reorder(graph: Any, nodes: Iterable[Any]) -> None:
    """Put a graph's calls into an order."""
    end = graph.output_node()
    for node in nodes:
        end.prepend(node)


def late(graph: Any, limit: int) -> None:
    """Wait for collectives only where what costs needs a result; changes the graph.

    Args:
        limit: bytes of results whose use may be put off at once.
    """
    needs = before(graph)
    order = {node: at for at, node in enumerate(needs)}
    put_off: dict[Any, int] = {}  # a call -> the bytes that are held for it, in order
    done: list[Any] = []

    def emit(node: Any) -> None:
        found, todo = {node}, [node]
        while todo:
            more = {one for one in needs[todo.pop()] if one in put_off} - found
            found |= more
            todo += more
        for one in sorted(found, key=order.__getitem__):
            put_off.pop(one, None)
            done.append(one)

    for node in needs:
        if is_wait(node) or (is_light(node) and not needs[node].isdisjoint(put_off)):
            put_off[node] = (size_of(node) or 0) if is_wait(node) else 0
            while sum(put_off.values()) > limit:
                emit(next(iter(put_off)))
        else:
            emit(node)
    while put_off:
        emit(next(iter(put_off)))
    reorder(graph, done)


def early(graph: Any, limit: int) -> None:
    """Start collectives as soon as what costs has made their inputs; changes the graph.

    Args:
        limit: bytes that may be under way at once, of those that are started earlier.
    """
    needs = before(graph)
    nodes = list(needs)
    order = {node: at for at, node in enumerate(nodes)}
    place = {node: (at, 1, at) for node, at in order.items()}
    ends = {one: at for node, at in order.items() if is_wait(node) for one in node.args}
    loads = [0] * len(nodes)
    for start in filter(is_start, nodes):
        light, heavy = _chain(start, needs)
        at, size = order[start], size_of(start)
        first = max((order[one] + 1 for one in heavy), default=0)
        while size is not None and first < at and loads[at - 1] + size <= limit:
            at -= 1
        for busy in range(at, ends.get(start, at)):
            loads[busy] += size or 0
        for one in (*light, start):
            place[one] = min(place[one], (at, 0, order[one]))
    reorder(graph, sorted(nodes, key=place.__getitem__))


def _chain(start: Any, needs: dict[Any, set[Any]]) -> tuple[set[Any], set[Any]]:
    """The light calls that a start needs, and the heavy ones that those need."""
    light: set[Any] = set()
    heavy: set[Any] = set()
    todo = [start]
    while todo:
        for one in needs[todo.pop()]:
            if not is_light(one):
                heavy.add(one)
            elif one not in light:
                light.add(one)
                todo.append(one)
    return light, heavy


def is_ordered(node: Any) -> bool:
    """Whether a call has an effect beside the memories that it writes."""
    import torch

    if is_start(node) or is_wait(node) or not stays(node):
        return False
    if kind(node):  # a collective of another form
        return True
    seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return seeded or not list(written(node))
