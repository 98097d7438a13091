"""A shipped graph as one rank would run it: the coordinates that it reads, as that rank's numbers.

The types compare what ranks compute by the numbers in their graphs. One that each rank reads as it
runs is the same node on all of them, and would be taken for the same number.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from lockstep.capture.graph import StepGraph
from lockstep.spmd.mesh import WORLD
from lockstep.spmd.ops import COORDINATE


def reads_coordinates(graph: StepGraph) -> bool:
    """Whether a graph reads this rank's place on an axis as it runs."""
    return bool(graph.gm.graph.find_nodes(op="call_function", target=COORDINATE))


def placed(graph: StepGraph, coordinate: Mapping[str, int], mesh: Mapping[str, int]) -> StepGraph:
    """Copy a graph with the numbers of one rank in it; its nodes keep their names and places.

    Args:
        coordinate: the rank's, by axis.
        mesh: axis -> size, outermost first.
    """
    gm = GraphModule(graph.gm, copy.deepcopy(graph.gm.graph))
    settle(gm, coordinate, mesh)
    return dataclasses.replace(graph, gm=gm)


def settle(gm: GraphModule, coordinate: Mapping[str, int], mesh: Mapping[str, int]) -> None:
    """Put one rank's numbers into a graph, in place of what reads them; see `placed`."""
    known: dict[Node, Any] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target is COORDINATE:
            value = _value(str(node.args[1]), coordinate, mesh)
            if value is not None:
                known[node] = value
            continue
        if not any(read in known for read in node.all_input_nodes):
            continue
        node.args = map_arg(node.args, lambda read: known.get(read, read))
        node.kwargs = map_arg(node.kwargs, lambda read: known.get(read, read))
        if _is_arithmetic(node):
            known[node] = node.target(*node.args, **node.kwargs)  # type: ignore[operator]


def _is_arithmetic(node: Node) -> bool:
    plain = node.op == "call_function" and not hasattr(node.target, "_schema")
    return plain and not node.all_input_nodes


def _value(name: str, coordinate: Mapping[str, int], mesh: Mapping[str, int]) -> int | None:
    """What a rank reads of a name as `Coordinates.read` has them; None: no axis of this mesh."""
    axis, _, place = name.partition("@")
    if place and axis in mesh:
        return _rank({**coordinate, axis: int(place)}, mesh)
    if axis == WORLD:
        return int(place) if place else _rank(coordinate, mesh)
    return coordinate.get(axis)


def _rank(coordinate: Mapping[str, int], mesh: Mapping[str, int]) -> int:
    rank = 0
    for axis, size in mesh.items():
        rank = rank * size + coordinate[axis]
    return rank
