"""Uses of a parameter that the user cut off from its gradient, beside uses that give it one.

Such a cut may be meant, as in a stop-gradient, or be a slip that no number shows: the job's loss
as it is written has just that gradient. So it is told, and is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from lockstep.capture.origin import META, Origin
from lockstep.checker.simulation.simulate import op_name
from lockstep.checker.world import World

_SAME = {
    f"aten.{name}"
    for name in "alias view _unsafe_view clone detach t transpose permute select slice expand "
    "squeeze unsqueeze _to_copy reshape".split()
}


def cut_uses(world: World) -> list[tuple[str, str]]:
    """Return (parameter, "file:number" of the cut) in the order of the program."""
    trace = world.ranks[0]
    inputs = [node for node in trace.nodes if node.op == "placeholder"]
    names = {
        node: spec.name
        for node, spec in zip(inputs, trace.graph.inputs, strict=True)
        if spec.requires_grad and node.name in trace.cotangents
    }
    felt = _behind([root for root, _ in trace.notes.roots])
    found = [
        (names[source], _line(node))
        for node in trace.nodes
        if node in trace.notes.cuts and node in felt and op_name(node) in _SAME
        for source in [_source(node)]
        if source in names
    ]
    return list(dict.fromkeys(found))


def told(world: World) -> Iterator[str]:
    """Yield what a report says of them."""
    for name, line in cut_uses(world):
        yield f"taken as meant: {name} gets no gradient through {line}, and gets one elsewhere"


def _source(node: Node) -> Node:
    """What a value is a view or a copy of."""
    while op_name(node) in _SAME and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _behind(nodes: list[Node]) -> set[Node]:
    found: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def _line(node: Node) -> str:
    origin: Origin | None = node.meta.get(META)
    return (origin.line if origin is not None else "") or "a detach"
