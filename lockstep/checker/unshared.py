"""Gradients that are one rank's own until the step ends: of its own batch, and told to no other.

This needs no rule for any operator: it follows who reads what, and which collectives run along the
axis. A parameter that takes part in one itself, as a shard that is gathered does, is left out; one
beside it is not.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

from torch.fx import Node

from lockstep import _compat
from lockstep.capture.schemas import returns_its_first_argument, view_of
from lockstep.checker.inference.rules.context import shape_of
from lockstep.checker.inference.rules.writes import written_nodes
from lockstep.checker.world import RankTrace

_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "lockstep")


class Along:
    """Who depends on whom along one axis, in one rank's graph.

    Args:
        trace: the rank's.
        axis: the axis; a collective that names none of `others` is taken to run along it.
        others: the mesh's other axes.
    """

    def __init__(self, trace: RankTrace, axis: str, others: list[str]) -> None:
        self._nodes, self._others = trace.nodes, set(others)
        inputs = [node for node in self._nodes if node.op == "placeholder"]
        kinds = [spec.kind for spec in trace.graph.inputs]
        self._batch = {n for n, kind in zip(inputs, kinds, strict=True) if kind == "arg"}
        self._state = {n for n in inputs if n not in self._batch}
        self._root: dict[Node, Node] = {}
        self._own: set[Node] = set()  # depends on the rank's batch
        self._mixed: set[Node] = set()  # depends on what other ranks computed
        self._learned: set[Node] = set()  # depends on a parameter or other state
        self._told: set[Node] = set()  # reaches a collective
        self._roots_told: set[Node] = set()
        for node in self._nodes:
            self._forward(node)
        for node in reversed(self._nodes):
            self._backward(node)

    def alone(self, *gradients: Node) -> bool:
        """Whether gradients are of this rank's batch, and of and for nothing of another rank."""
        return all(
            self._has(node, self._own)
            and not self._has(node, self._mixed)
            and node not in self._told
            and self._base(node) not in self._roots_told
            for node in gradients
        )

    def _forward(self, node: Node) -> None:
        if view_of(node.target) or returns_its_first_argument(node.target) or _piece(node):
            self._root[node] = self._base(node.args[0])  # type: ignore[arg-type]
        read = node.all_input_nodes
        if node in self._batch:
            self._own.add(node)
        if node in self._state:
            self._learned.add(node)
        if self._communicates(node):
            counts = all(shape_of(n) == () and not self._has(n, self._learned) for n in read)
            # State, as buffers that DDP sends or shards that FSDP2 gathers, is of no rank's batch.
            batches = any(self._has(n, self._own) or self._has(n, self._mixed) for n in read)
            if batches and not counts:
                self._put(node, self._mixed)
            if not batches and any(self._has(n, self._learned) for n in read):
                self._put(node, self._learned)
            return
        for flags in (self._own, self._mixed, self._learned):
            if any(self._has(n, flags) for n in read):
                self._put(node, flags)

    def _backward(self, node: Node) -> None:
        if self._communicates(node):
            self._told.update(node.all_input_nodes)
            self._roots_told.update(self._base(n) for n in node.all_input_nodes)
        written = [self._base(target) for target in written_nodes(node)]
        reached = any(user in self._told for user in node.users)
        if reached or any(base in self._roots_told for base in written):
            self._told.add(node)
            self._roots_told.add(self._base(node))

    def _put(self, node: Node, flags: set[Node]) -> None:
        """Flag a node, and what it writes to with all that shares that memory."""
        flags.add(node)
        for target in written_nodes(node):
            flags.update((target, self._base(target)))

    def _has(self, node: Node, flags: set[Node]) -> bool:
        return node in flags or self._base(node) in flags

    def _base(self, node: Node) -> Node:
        return self._root.get(node, node)

    def _communicates(self, node: Node) -> bool:
        if getattr(node.target, "namespace", "") not in _COLLECTIVES:
            return False
        name = next(_groups(node), None)
        return name is not None and name not in self._others


def _groups(node: Node) -> Iterator[str]:
    """The group or axis that an operator names, if it names one."""
    schema = _compat.schema_or_none(node.target)
    for at, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name in ("group_name", "axis"):
            yield str(node.args[at] if at < len(node.args) else node.kwargs.get(argument.name))


def _piece(node: Node) -> bool:
    """Whether a node is one of several views that an operator gave."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and view_of(source.target)
