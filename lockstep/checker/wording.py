"""A fault as a finding: the user's line, where each operand got its type, and a line to paste."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from lockstep.checker.finding import Finding
from lockstep.checker.flow import Flow
from lockstep.checker.kinds import Kind
from lockstep.checker.rules.context import Fault
from lockstep.checker.source import bare, line_of, place_of, segment_for, statement, text_of
from lockstep.spmd.types import Type


@dataclass(frozen=True)
class Repair:
    """One candidate repair, as text and as data for who tries it out.

    Args:
        verb: "all_reduce", "convert", "reduce_scatter", "all_gather", or "dst" (change the dst of
            the collective that made `operand`) or "drop" (leave out the collective at `node`).
        node: the node that reads `operand`; None: all of them.
        line: where the pasted line goes, replacing that line.
    """

    verb: str
    axis: str
    src: str
    dst: str
    operand: Node | None
    node: Node | None
    line: str
    text: str


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
        line = self.line(fault.node)
        repairs = self.repairs(fault, line)
        related = [line_of(n) for n in (fault.operand, fault.other) if n is not None]
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
            if operand is None or operand is fault.node:
                continue
            born = self.born(operand)
            name = segment_for(operand, self.line(fault.node), self.names, fault.node)
            where = f"input {self.names[born]}" if born in self.names else self.line(born)
            if name and where:
                said.append(f"{name} is {self.type_of(operand)} since {where}")
        return said

    def born(self, node: Node) -> Node:
        """The node where a value got its type: back through what merely hands it on."""
        while node.op == "call_function" and node not in self.flow.graphs.moves:
            mine = self.type_of(node)
            same = [n for n in node.all_input_nodes if self.type_of(n) == mine]
            if not same or node in self.flow.graphs.claims:
                break
            node = same[0]
        return node

    # -- repairs

    def repairs(self, fault: Fault, line: str) -> list[Repair]:
        """Candidate repairs of a fault."""
        operand, other, axis = fault.operand, fault.other, self.axis
        found: list[Repair | None] = []
        if fault.code in ("LS501", "LS502", "LS506") and operand is not None:
            if self._is_partial(operand):
                dst = self._whole_as(fault)
                found += [self._wrap("all_reduce", "P", dst, operand, fault, line)]
                if fault.code == "LS501" and other is not None:
                    src = self.type_of(other) if self.type_of(other) in "RI" else "I"
                    keep = self._wrap("convert", src, "P", other, fault, line)
                    later = self._reduced_later(fault.node)
                    found = [keep, *found] if later else [*found, keep]
        elif fault.code == "LS503" and operand is not None:
            found += [self._change_dst(operand)]
            if other is not None:
                found += [self._wrap("convert", "I", "R", other, fault, line)]
        elif fault.code == "LS504" and operand is not None:
            found += [self._wrap("convert", "I", "R", operand, fault, line)]
        elif fault.code == "LS505":
            found += [self._drop(fault.node, operand, line)]
        elif fault.code == "LS514" and operand is not None and "P" in fault.got:
            verb = '"mean"' if "mean" in fault.got else '"sum"'
            name = self._spelled(operand)
            text = f'{name}.grad = ls.all_reduce({name}.grad, "{axis}", src={fault.got}, dst=R)'
            found += [Repair("all_reduce", axis, "P", verb, fault.node, None, line, text)]
            found += [self._convert_parameter(operand)]
        return [repair for repair in found if repair is not None]

    def _is_partial(self, node: Node) -> bool:
        kind: Any = self.flow.kinds.get(node)
        return isinstance(kind, Kind) and kind.tag == "P"

    def _whole_as(self, fault: Fault) -> str:
        """R or I, as what the reduced value meets is; I where nothing says it."""
        if fault.other is not None and self.type_of(fault.other) in ("R", "I"):
            return self.type_of(fault.other)
        return "I"

    def _reduced_later(self, node: Node) -> bool:
        """Whether the result goes into a reduction anyway, which would count twice."""
        seen: set[Node] = set()
        todo = list(node.users)
        while todo:
            user = todo.pop()
            if user in seen or user.op != "call_function" or len(seen) > 40:
                continue
            seen.add(user)
            if "all_reduce" in str(user.target) or "reduce_scatter" in str(user.target):
                return line_of(user) == line_of(node)
            if len(user.all_input_nodes) == 1:
                todo += list(user.users)
        return False

    def _wrap(
        self, verb: str, src: str, dst: str, operand: Node, fault: Fault, line: str
    ) -> Repair | None:
        call = f'ls.{verb}({{}}, "{self.axis}", src={src}, dst={dst})'
        text = bare(text_of(line))
        place = place_of(operand, line, self.names, fault.node)
        if place is None:
            name = self.names.get(operand, "x")
            pasted = f"{name} = {call.format(name)}"
        else:
            start, end = place
            pasted = text[:start] + call.format(text[start:end]) + text[end:]
        return Repair(verb, self.axis, src, dst, operand, fault.node, line, pasted)

    def _change_dst(self, replicated: Node) -> Repair | None:
        """The collective that made the R gives I instead."""
        born = self.born(replicated)
        move = self.flow.graphs.moves.get(born)
        if move is None or move[0] not in ("all_reduce", "all_gather"):
            return None
        line = self.line(born)
        text = bare(text_of(line))
        if "dst=R" in text:
            pasted = text.replace("dst=R", "dst=I")
        elif '"R"' in text:
            pasted = text.replace('"R"', '"I"')
        else:
            pasted = f'ls.{move[0]}(..., "{self.axis}", src={move[1]}, dst=I)'
        return Repair("dst", self.axis, str(move[1]), "I", born, None, line, pasted)

    def _drop(self, node: Node, operand: Node | None, line: str) -> Repair | None:
        text = bare(text_of(line))
        inner = place_of(operand, line, self.names) if operand is not None else None
        call = _call_around(text, inner) if inner is not None else None
        if inner is None or call is None:
            return None
        pasted = text[: call[0]] + text[slice(*inner)] + text[call[1] :]
        return Repair("drop", self.axis, "", "", operand, node, line, pasted)

    def _spelled(self, parameter: Node) -> str:
        """A parameter as its line has it, or by its path from the step's arguments."""
        path = self.names.get(parameter, "parameter")
        for user in parameter.users:
            name = segment_for(parameter, line_of(user), self.names)
            if name and not name.startswith("self."):
                return name
        return path

    def _convert_parameter(self, parameter: Node) -> Repair | None:
        """Where the parameter is read, its gradient can be summed by the backward."""
        if self.flow.graphs.claims.get(parameter) not in ("R", "I"):
            return None
        for user in parameter.users:
            if self.flow.graphs.phases.get(user) == "forward" and line_of(user):
                line = line_of(user)
                fault = Fault("LS514", "", "", user, parameter)
                return self._wrap("convert", "I", "R", parameter, fault, line)
        return None


def _call_around(text: str, inner: tuple[int, int]) -> tuple[int, int] | None:
    """Where the innermost call is that has an expression as an argument."""
    tree = statement(text)
    for part in ast.walk(tree) if tree is not None else ():
        if isinstance(part, ast.Call) and part.end_col_offset is not None:
            if inner in [(arg.col_offset, arg.end_col_offset) for arg in part.args]:
                return part.col_offset, part.end_col_offset
    return None
