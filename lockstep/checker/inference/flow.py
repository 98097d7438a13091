"""Abstract interpretation of all ranks' graphs along one axis: forward, backward and what follows.

The ranks' graphs have the same nodes in the same order. What a node reads may differ, which is how
`x.chunk(n)[rank]` looks; so may its constants.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep.checker.inference.buffers import Buffers, nodes_in
from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, ZERO, Kind, kind_of
from lockstep.checker.inference.rules import find, op_name
from lockstep.checker.inference.rules.claimed import check_claim, check_move
from lockstep.checker.inference.rules.context import Context, Fault, is_tensor, shape_of
from lockstep.checker.inference.rules.pointwise import divides_by_ranks
from lockstep.checker.inference.rules.slices import picked_piece
from lockstep.checker.inference.rules.writes import written_nodes
from lockstep.spmd.ops import COORDINATE
from lockstep.spmd.types import Type


@dataclass
class Graphs:
    """What the interpretation reads of a world, for one axis.

    Args:
        nodes: by coordinate along the axis, the nodes of each traced rank's graph in order.
        inputs: placeholder -> its kind.
        claims: node -> what the user claims of its value on this axis.
        moves: node after a typed collective on this axis -> (verb, src, dst, before, line).
        cotangents: forward node -> the node of its gradient.
        roots: the losses, on which backward() was called.
        seeded: those that a gradient of their own was given to: where they vary, a sum is meant.
        phases: node -> "input", "forward", "backward" or "after".
        places: the coordinates of the traced ranks; of all, where they are left out.
        size: the number of ranks on the axis; of those traced, where it is left out.
    """

    axis: str
    nodes: list[list[Node]]
    inputs: dict[Node, Kind] = field(default_factory=dict)
    claims: dict[Node, Type] = field(default_factory=dict)
    moves: dict[Node, tuple[Any, ...]] = field(default_factory=dict)
    cotangents: dict[Node, Node] = field(default_factory=dict)
    roots: list[Node] = field(default_factory=list)
    seeded: set[Node] = field(default_factory=set)
    phases: dict[Node, str] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    size: int = 0

    def __post_init__(self) -> None:
        self.places = self.places or list(range(len(self.nodes)))
        self.size = self.size or len(self.nodes)


class Flow:
    """Types one axis; `kinds`, `faults` and `unknown` are filled by `run`."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.kinds: dict[Node, Any] = {}
        self.faults: list[Fault] = []
        self.unknown: Counter[str] = Counter()
        self.picked: dict[Node, frozenset[Node]] = {}  # node -> what is another one on each rank
        self._by_rank: set[Node] = set()
        self.position = [{node: i for i, node in enumerate(nodes)} for nodes in graphs.nodes]
        self._buffers = Buffers(self)
        self._value_of = {b: f for f, b in graphs.cotangents.items()}
        self._cotangent_power: dict[Node, int] = {}

    def run(self) -> Flow:
        """Type every node in order."""
        for i, node in enumerate(self.graphs.nodes[0]):
            if node.op == "placeholder":
                self.kinds[node] = self._claimed(node, self.graphs.inputs.get(node, EQUAL))
            elif node.op == "call_function":
                self._visit(i, node)
            elif node.op == "get_attr":
                self.kinds[node] = _constant(node)
        return self

    def _visit(self, i: int, node: Node) -> None:
        peers = [nodes[i] for nodes in self.graphs.nodes]
        self._buffers.note_view(node)
        try:
            made = self.typed(node, peers)
            if isinstance(made, Kind):
                made = self._claimed(node, self._as_cotangent(node, made))
        except _compat.capture_errors():  # a size that no trace knows: what it means is not known
            made = UNKNOWN
        self.kinds[node] = made
        for target in written_nodes(node):
            self._buffers.write(node, target, made)

    # -- one node

    def typed(self, node: Node, peers: list[Node]) -> Any:
        """Return the kind, or kinds, that a node's rule gives."""
        name = op_name(node.target)
        if self._reads_rank(node):
            return UNKNOWN
        rule = find(name)
        picks = self._picks(node, peers)
        if picks:
            self.picked[node] = frozenset(picks)
        ctx = self._context(node, peers, picks)
        if not ctx.operands and (not is_tensor(node) or node.all_input_nodes):
            return self._of_numbers(ctx)
        known = len(self.faults)
        if rule is not None:
            made = rule.of(ctx)
        else:
            self.unknown[name] += 1
            made = self._without_rule(ctx)
        read = ctx.operands[1:] if name == "copy" else ctx.operands  # what it writes over is gone
        power = max((o.kind.power for o in read), default=0)
        if power and (rule is None or not rule.linear):
            made = _each(made, lambda kind: replace(kind, power=0))
        elif power and name != "mean" and "_c10d" not in name:
            down = int(divides_by_ranks(ctx))
            made = _each(made, lambda kind: _at_power(kind, power, down))
        told = any(fault.code == "LS512" for fault in self.faults[known:])
        if ctx.forward and not told and any(o.kind.note == "moved" for o in ctx.operands):
            made = made if "all_to_all" in name else _each(made, _in_moved_order)
        return made

    def _reads_rank(self, node: Node) -> bool:
        """Whether a node is made from a coordinate that no number of a rank stands for."""
        if node.target is COORDINATE or not self._by_rank.isdisjoint(node.all_input_nodes):
            if not is_tensor(node):
                self._by_rank.add(node)
            return True
        return False

    def _of_numbers(self, ctx: Context) -> Any:
        """A result of numbers alone, or a piece of several results."""
        if op_name(ctx.node.target) == "getitem":
            return find("getitem").of(ctx)  # type: ignore[union-attr]
        return VARYING if ctx.differs else EQUAL

    def _context(self, node: Node, peers: list[Node], picks: dict[Node, Kind]) -> Context:
        return Context(
            node,
            self.graphs.axis,
            self.graphs.size,
            peers,
            self.kinds,
            picks,
            self.graphs.phases.get(node, "forward"),
            self.faults.append,
            self.graphs.places,
        )

    def _without_rule(self, ctx: Context) -> Any:
        same = all(o.kind.same for o in ctx.operands) and not ctx.differs
        kind = EQUAL if same else UNKNOWN
        value = ctx.node.meta.get("val")
        return [kind] * len(value) if isinstance(value, (list, tuple)) else kind

    # -- ranks that read different nodes

    def _picks(self, node: Node, peers: list[Node]) -> dict[Node, Kind]:
        """Operands that are another node on each rank, with what they are then."""
        found: dict[Node, Kind] = {}
        joins = op_name(node.target) in ("cat", "stack")
        read = [nodes_in(peer) for peer in peers]
        for j, mine in enumerate(read[0]):
            theirs = [nodes[j] if j < len(nodes) else mine for nodes in read]
            places = {self.position[r].get(other) for r, other in enumerate(theirs)}
            if len(places) == 1:
                continue
            local = [self.graphs.nodes[0][place] for place in places if place is not None]
            kind = self._picked(node, peers, mine, local)
            found[mine] = self.kinds.get(mine, UNKNOWN) if joins else kind
        return found

    def _picked(self, node: Node, peers: list[Node], mine: Node, others: list[Node]) -> Kind:
        kinds = [self.kinds.get(other) for other in others]
        if all(isinstance(kind, Kind) and kind.tag == "Z" for kind in kinds):
            return ZERO
        bases = {other.args[0] for other in others if op_name(other.target) == "getitem"}
        if len(bases) == 1 and all(op_name(other.target) == "getitem" for other in others):
            return picked_piece(self._context(node, peers, {}), bases.pop())
        if any(not isinstance(kind, Kind) or kind.tag in "?P" for kind in kinds):
            return UNKNOWN
        return VARYING

    # -- what else is known of a value

    def _claimed(self, node: Node, kind: Kind) -> Kind:
        move = self.graphs.moves.get(node)
        if move is not None:
            source = self.kinds.get(move[3])
            ctx = self._context(node, [node], {})
            check_move(ctx, move, source if isinstance(source, Kind) else UNKNOWN)
        claim = self.graphs.claims.get(node)
        if claim is None:
            return kind
        if move is None and node.op != "placeholder":
            check_claim(self._context(node, [node], {}), claim, kind)
        wanted = kind_of(claim)
        if wanted.tag == kind.tag and wanted.tag != "S":
            wanted = kind if wanted.tag != "P" else replace(kind, power=wanted.power)
        return replace(wanted, power=max(wanted.power, kind.power if wanted.tag != "P" else 0))

    def _as_cotangent(self, node: Node, kind: Kind) -> Kind:
        """The gradient of a shard is a shard of the same place; that of a P(mean) is N times it."""
        value = self._value_of.get(node)
        if value is None:
            return kind
        of = self.kinds.get(value)
        if not isinstance(of, Kind):
            return kind
        if value in self.graphs.roots and of.tag == "P" and of.power:
            return replace(kind, power=of.power, flat=kind.flat)
        if of.tag == "S" and kind.tag in "EV?" and shape_of(value) == shape_of(node):
            return replace(of, power=kind.power, note="")
        if of.tag == "E" and kind.tag == "S" and kind.before == 1:
            if shape_of(node) and shape_of(node)[kind.dim] == 1:
                return replace(PARTIAL, power=kind.power)  # the sum over one row left no trace
        return kind


def _constant(node: Node) -> Kind:
    module = node.graph.owning_module
    value = getattr(module, str(node.target), None) if module is not None else None
    zero = isinstance(value, torch.Tensor) and not value.any()
    return ZERO if zero else EQUAL


def _each(made: Any, change: Any) -> Any:
    return [change(kind) for kind in made] if isinstance(made, list) else change(made)


def _in_moved_order(kind: Kind) -> Kind:
    return replace(kind, note="moved") if kind.varies and not kind.note else kind


def _at_power(kind: Kind, power: int, down: int) -> Kind:
    if kind.tag not in "ESPV":
        return kind
    return replace(kind, power=max(0, max(power, kind.power) - down))
