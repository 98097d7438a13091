"""Whether two traces of a step are one program but for what they tell; one graph of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from lockstep import _compat
from lockstep.capture import passes
from lockstep.capture.emits import Emit, Json
from lockstep.capture.graph import StepGraph
from lockstep.capture.origin import META


class Bare:
    """The nodes of a graph that its results and its writes need: what is left without effects.

    Args:
        graph: its last outputs are those that effects alone want.
        whole: keep what effects want too.
    """

    def __init__(self, graph: StepGraph, whole: bool = False) -> None:
        self.graph = graph
        outputs: Any = graph.gm.graph.output_node().args[0]
        outputs = outputs if whole else outputs[: graph.computed]
        self.kept = _needed(graph, outputs)
        number = {node: f"%{at}" for at, node in enumerate(self.kept)}
        self.rows = [(node, _row(node, number)) for node in self.kept]
        mine = [number.get(node, node) for node in outputs]
        self.results = f"{mine} {graph.returns} {graph.effects} {graph.out_spec} {graph.inputs}"


def difference(one: Bare, other: Bare) -> tuple[str, str] | None:
    """Say in what two programs differ, by each one's first line of it; None: they are the same."""
    for mine, its in zip(one.rows, other.rows, strict=False):
        if mine[1] != its[1]:
            return _said(mine[0]), _said(its[0])
    longer = len(one.rows) - len(other.rows)
    if longer > 0:
        return _said(one.rows[len(other.rows)][0]), "nothing more"
    if longer < 0:
        return "nothing more", _said(other.rows[len(one.rows)][0])
    return None if one.results == other.results else ("one result", "another")


def merge(into: Bare, other: Bare) -> list[Emit]:
    """Put what another trace's effects compute into a graph that is the same without it.

    Returns:
        The other's effects, over outputs of the graph.
    """
    graph = into.graph.gm.graph
    image: dict[Node, Node] = dict(zip(other.kept, into.kept, strict=True))
    kept = set(other.kept)
    last = None
    for node in other.graph.gm.graph.nodes:
        if node.op == "output":
            break
        if node in kept:
            last = image[node]
            continue
        assert last is not None
        with graph.inserting_after(last):
            image[node] = last = graph.node_copy(node, lambda read: image[read])
    output = graph.output_node()
    outputs = list(output.args[0])  # type: ignore[arg-type]
    theirs: Any = other.graph.gm.graph.output_node().args[0]
    moved = {}
    for at in range(other.graph.computed, len(theirs)):
        moved[at] = len(outputs)
        outputs.append(image[theirs[at]])
    output.args = (tuple(outputs),)
    into.graph.gm.graph.lint()
    into.graph.gm.recompile()
    return [replace(emit, what=_moved(emit.what, moved)) for emit in other.graph.emits]


def _moved(what: Json, moved: dict[int, int]) -> Json:
    if not isinstance(what, list):
        return what
    if what[:1] in (["tensor"], ["item"]):
        return [what[0], moved.get(what[1], what[1])]
    return [_moved(part, moved) for part in what]


def _needed(graph: StepGraph, outputs: Any) -> list[Node]:
    """The nodes that stay where nothing but these outputs is wanted."""
    copied: dict[Node, Node] = {}
    made = Graph()
    made.graph_copy(graph.gm.graph, copied)
    made.output(tuple(copied.get(node, node) for node in outputs))
    made.eliminate_dead_code(is_impure_node=passes.stays)
    left = set(made.nodes)
    return [node for node in graph.gm.graph.nodes if copied.get(node) in left]


def _row(node: Node, number: dict[Node, str]) -> str:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda read: number[read])  # type: ignore[misc]
    value = node.meta.get("val")
    shape = list(map(_size, value.shape)) if isinstance(value, torch.Tensor) else ""
    kind = value.dtype if isinstance(value, torch.Tensor) else ""
    return f"{node.op} {_target(node)} {args} {kwargs} {kind} {shape}"


def _size(size: Any) -> str:
    return str(size) if isinstance(size, int) else "?"


def _target(node: Node) -> str:
    if node.op == "placeholder" or _compat.schema_or_none(node.target) is not None:
        return "" if node.op == "placeholder" else str(node.target)
    return getattr(node.target, "__qualname__", str(node.target))


def _said(node: Node) -> str:
    origin = node.meta.get(META)
    where = f" at {origin.line}" if origin is not None and origin.line else ""
    return f"{_target(node).removesuffix('.default')}{where}"
