"""A fault as a finding: the user's line, where each operand got its type, and a line to paste."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lockstep.checker.finding import Finding
from lockstep.checker.inference.flow import Flow
from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules.context import Fault
from lockstep.checker.repair.repairs import Repair, Repairs
from lockstep.checker.source import line_of, segment_for, text_of
from lockstep.spmd.types import Type


class Writer:
    """Words the faults of one axis.

    Args:
        names: placeholder -> the input's name.
        ties: node -> R or I, of forward values that are equal on all ranks.
    """

    def __init__(self, flow: Flow, ties: dict[Node, Type], names: dict[Node, str]) -> None:
        self.flow, self.ties, self.names = flow, ties, names
        self.axis = flow.graphs.axis

    def finding(self, fault: Fault) -> tuple[Finding, list[Repair]]:
        """Return a fault's finding and its candidate repairs, the cheapest first."""
        line = self.place(fault)
        repairs = Repairs(self.flow, self.names, self.type_of, self.line, self.born).of(fault)
        related = [line_of(n) for n in (fault.node, fault.operand, fault.other) if n is not None]
        if fault.operand is fault.node:  # a value that is wrong by itself: where it became so
            related.append(self.line(self.born(fault.node)))
        lines = [at for at in dict.fromkeys(related) if at and at != line]
        return Finding(
            code=fault.code,
            what=fault.what,
            line=line,
            source=text_of(line).strip(),
            axis=self.axis,
            got=fault.got,
            want=fault.want,
            why="; ".join([fault.why, *self._provenance(fault)]),
            fix=repairs[0].text if repairs else None,
            witness="types",
            related=tuple(lines),
        ), repairs

    def place(self, fault: Fault) -> str:
        """Where a fault is told; in the backward where the partial gradient came to be."""
        partial = fault.operand is not None and self.type_of(fault.operand).startswith("P")
        if self.flow.graphs.phases.get(fault.node) == "backward" and partial and fault.operand:
            return self.line(self.born(fault.operand)) or self.line(fault.node)
        return self.line(fault.node)

    def line(self, node: Node) -> str:
        """The line that a node is charged to; of a typed collective the line of its call."""
        move = self.flow.graphs.moves.get(node)
        if move is not None and not str(move[4]).startswith("<"):
            return str(move[4])
        return line_of(node)

    def type_of(self, node: Node) -> str:
        """A value's type in words."""
        kind: Any = self.flow.kinds.get(node)
        if node in self.ties:
            return str(self.ties[node])
        return repr(kind) if isinstance(kind, Kind) else "?"

    def _provenance(self, fault: Fault) -> list[str]:
        said = []
        for operand in (fault.operand, fault.other):
            if operand is None:
                continue
            born = self.born(operand)
            if operand is fault.node:
                name = "it" if self.line(born) != self.line(operand) else ""
            else:
                name = segment_for(operand, self.line(fault.node), self.names, fault.node) or ""
            where = f"input {self.names[born]}" if born in self.names else self.line(born)
            if name and where:
                said.append(f"{name} is {self.type_of(operand)} since {where}")
        return said

    def born(self, node: Node) -> Node:
        """The node where a value got its type: back through what merely hands it on."""
        mine = self.type_of(node)
        while node.op == "call_function" and node not in self.flow.graphs.moves:
            mine = mine if self.type_of(node) == "?" else self.type_of(node)
            same = [n for n in node.all_input_nodes if self._has(n, mine)]
            if not same or node in self.flow.graphs.claims:
                break
            node = same[0]
        return node

    def _has(self, node: Node, type_: str) -> bool:
        """Whether a node's value, or one of its several values, has a type."""
        kind: Any = self.flow.kinds.get(node)
        if isinstance(kind, list):
            return type_ in [repr(one) for one in kind]
        return self.type_of(node) == type_
