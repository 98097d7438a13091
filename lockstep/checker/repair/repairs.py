"""Candidate repairs of a fault, each as the line to paste, the cheapest communication first."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from lockstep.checker.inference.flow import Flow
from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules.context import Fault
from lockstep.checker.source import bare, line_of, place_of, segment_for, statement, text_of

Place = tuple[int, int]
MANY = "more of the same kind"


@dataclass(frozen=True)
class Repair:
    """One candidate.

    Args:
        line: the "file:number" that `text` takes the place of; "" if it is to be put in instead.
        forward: whether it changes a number of the forward, so that a twin must check it.
    """

    line: str
    text: str
    forward: bool = True


@dataclass
class Repairs:
    """Finds the repairs of one axis' faults.

    Args:
        names: placeholder -> the input's name.
        type_of, line_at, born: a node's type in words, its line, and where it got its type.
    """

    flow: Flow
    names: dict[Node, str]
    type_of: Callable[[Node], str]
    line_at: Callable[[Node], str]
    born: Callable[[Node], Node]

    @property
    def axis(self) -> str:
        return self.flow.graphs.axis

    def of(self, fault: Fault) -> list[Repair]:
        """Return a fault's candidates."""
        by_code: dict[str, Callable[[Fault], list[Repair | None]]] = {
            "LS501": self._partial_added,
            "LS502": self._partial_used,
            "LS503": self._replicated,
            "LS504": self._invariant,
            "LS505": self._twice,
            "LS506": self._partial_used,
            "LS507": self._gathered,
            "LS512": self._moved,
            "LS514": self._unreduced,
            "LS518": self._own_backward,
        }
        make = by_code.get(fault.code)
        found = make(fault) if make is not None and fault.operand is not None else []
        return list(dict.fromkeys(r for r in found if r is not None))

    # -- by fault

    def _partial_added(self, fault: Fault) -> list[Repair | None]:
        reduce, keep = self._reduce(fault), None
        if fault.other is not None and fault.other is not fault.operand:
            src = self.type_of(fault.other)
            keep = self._wrap("convert", src if src in ("R", "I") else "I", "P", fault.other, fault)
        return [keep, reduce] if self._reduced_later(fault.node) else [reduce, keep]

    def _partial_used(self, fault: Fault) -> list[Repair | None]:
        if fault.operand is None or not self._is_partial(fault.operand):
            return []
        return [self._after_reduction(fault), self._without_factor(fault), self._reduce(fault)]

    def _replicated(self, fault: Fault) -> list[Repair | None]:
        assert fault.operand is not None
        found = [self._change_dst(fault.operand)]
        if fault.other is not None:
            found.append(self._wrap("convert", "I", "R", fault.other, fault))
        return found

    def _invariant(self, fault: Fault) -> list[Repair | None]:
        assert fault.operand is not None
        return [self._wrap("convert", "I", "R", fault.operand, fault)]

    def _twice(self, fault: Fault) -> list[Repair | None]:
        """Leave the second reduction out."""
        assert fault.operand is not None
        line = self.line_at(fault.node)
        text = bare(text_of(line))
        inner = place_of(fault.operand, line, self.names)
        call = _call_around(text, inner) if inner is not None else None
        if inner is None or call is None:
            return []
        return [Repair(line, _put(text, call, text[slice(*inner)]))]

    def _gathered(self, fault: Fault) -> list[Repair | None]:
        """Gather along the dimension that is sharded."""
        move = self.flow.graphs.moves.get(fault.node)
        if move is None or move[0] != "all_gather":
            return []
        line = self.line_at(fault.node)
        text = bare(text_of(line))
        inner = place_of(move[3], line, self.names)
        call = _call_around(text, inner) if inner is not None else None
        if call is None or inner is None:
            return []
        name, src, dst = text[slice(*inner)], fault.got, move[2]
        return [Repair(line, _put(text, call, self._call("all_gather", name, src, str(dst))))]

    def _moved(self, fault: Fault) -> list[Repair | None]:
        assert fault.operand is not None
        return [self._wrap("all_to_all", "V", "V", fault.operand, fault)]

    def _unreduced(self, fault: Fault) -> list[Repair | None]:
        """Let the backward add the gradient up, or do it before the optimizer reads it."""
        parameter = fault.operand
        if parameter is None or "P" not in fault.got:
            return []
        if MANY in fault.what:
            root = self.names.get(parameter, "model").partition(".")[0]
            way = "mean" if "mean" in fault.got else "sum"
            whole = f'ls.reduce_grads({root}, {self.axis}="{way}")'
            return [Repair("", whole, forward=False)]
        name = self._spelled(parameter)
        reduced = self._call("all_reduce", f"{name}.grad", fault.got, "R")
        late = Repair("", f"{name}.grad = {reduced}", forward=False)
        if "mean" in fault.got:
            return [late]
        readers = [u for u in parameter.users if self.flow.graphs.phases.get(u) == "forward"]
        early = [
            self._wrap("convert", "I", "R", parameter, Fault("", "", "", user, parameter))
            for user in readers[:1]
            if line_of(user)
        ]
        return [late, *early]

    def _own_backward(self, fault: Fault) -> list[Repair | None]:
        """Convert what the Function returns: the line that calls it is where its result is."""
        line = self.line_at(fault.node)
        text = bare(text_of(line))
        tree = statement(text)
        if not isinstance(tree, ast.Assign) or tree.value.end_col_offset is None:
            return []
        place = (tree.value.col_offset, tree.value.end_col_offset)
        summed = self._call("all_reduce", text[slice(*place)], "P", "I")
        return [Repair(line, _put(text, place, summed), forward=False)]

    # -- the pieces

    def _call(self, verb: str, name: str, src: str, dst: str) -> str:
        src = src.replace("(mean)", '("mean")')
        return f'ls.{verb}({name}, "{self.axis}", src={src}, dst={dst})'

    def _wrap(self, verb: str, src: str, dst: str, operand: Node, fault: Fault) -> Repair | None:
        """The line with the operand in a call."""
        line = self.line_at(fault.node)
        forward = (src, dst) != ("I", "R")
        text = bare(text_of(line))
        place = place_of(operand, line, self.names, fault.node)
        if place is None:
            name = self.names.get(operand, "x")
            return Repair("", f"{name} = {self._call(verb, name, src, dst)}", forward)
        call = self._call(verb, text[slice(*place)], src, dst)
        return Repair(line, _put(text, place, call), forward)

    def _reduce(self, fault: Fault) -> Repair | None:
        """The partial, reduced to what it meets; to I where nothing says that it is R."""
        if fault.operand is None or not self._is_partial(fault.operand):
            return None
        met = self.type_of(fault.other) if fault.other is not None else ""
        src = repr(self.flow.kinds[fault.operand])
        return self._wrap("all_reduce", src, "R" if met == "R" else "I", fault.operand, fault)

    def _after_reduction(self, fault: Fault) -> Repair | None:
        """`reduce(f(x))` as `f(reduce(x))`, where one line does both."""
        line = self.line_at(fault.node)
        text = bare(text_of(line))
        assert fault.operand is not None
        inner = place_of(fault.operand, line, self.names, fault.node)
        call = _call_around(text, inner) if inner is not None else None
        outer = _call_around(text, call) if call is not None else None
        if inner is None or call is None or outer is None:
            return None
        name = text[outer[0] : call[0]]
        if "all_reduce" not in name and "reduce_scatter" not in name:
            return None
        reduced = name + text[slice(*inner)] + text[call[1] : outer[1]]
        applied = text[call[0] : inner[0]] + reduced + text[inner[1] : call[1]]
        return Repair(line, _put(text, outer, applied))

    def _without_factor(self, fault: Fault) -> Repair | None:
        """`a / n / ranks` as `a / reduce(n)`: once the divisor is whole, it counts all ranks."""
        reduced = self._reduce(fault)
        tree = statement(reduced.text) if reduced is not None else None
        if reduced is None or tree is None:
            return None
        for part in ast.walk(tree):
            inside = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div)
            if not inside or not isinstance(part, ast.BinOp) or part.end_col_offset is None:
                continue
            left = part.left
            divides = isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div)
            if divides and "ls.all_reduce" in ast.unparse(left):
                kept = ast.get_source_segment(reduced.text, left) or ""
                whole = (part.col_offset, part.end_col_offset)
                return Repair(reduced.line, _put(reduced.text, whole, kept))
        return None

    def _change_dst(self, replicated: Node) -> Repair | None:
        """The collective that made the R gives I instead."""
        born = self.born(replicated)
        move = self.flow.graphs.moves.get(born)
        if move is None or move[0] not in ("all_reduce", "all_gather"):
            return None
        line = self.line_at(born)
        text = bare(text_of(line))
        for old, new in (("dst=R", "dst=I"), ('"R"', '"I"')):
            if old in text:
                return Repair(line, text.replace(old, new), forward=False)
        return Repair("", self._call(move[0], "...", str(move[1]), "I"), forward=False)

    def _is_partial(self, node: Node) -> bool:
        kind: Any = self.flow.kinds.get(node)
        return isinstance(kind, Kind) and kind.tag == "P"

    def _reduced_later(self, node: Node) -> bool:
        """Whether the result goes into a reduction on the same line, which would count twice."""
        seen: set[Node] = set()
        todo = list(node.users)
        while todo:
            user = todo.pop()
            if user in seen or user.op != "call_function" or len(seen) > 40:
                continue
            seen.add(user)
            if "all_reduce" in str(user.target) or "reduce_scatter" in str(user.target):
                return True
            if len(user.all_input_nodes) == 1:
                todo += list(user.users)
        return False

    def _spelled(self, parameter: Node) -> str:
        """A parameter as its line has it, or by its path from the step's arguments."""
        path = self.names.get(parameter, "parameter")
        for user in parameter.users:
            name = segment_for(parameter, line_of(user), self.names)
            if name and not name.startswith("self.") and not name.isidentifier():
                return name
        return path


def _put(text: str, place: Place, new: str) -> str:
    return text[: place[0]] + new + text[place[1] :]


def _call_around(text: str, inner: Place) -> Place | None:
    """Where the call is that has an expression as an argument."""
    tree = statement(text)
    for part in ast.walk(tree) if tree is not None else ():
        if isinstance(part, ast.Call) and part.end_col_offset is not None:
            if inner in [(arg.col_offset, arg.end_col_offset) for arg in part.args]:
                return part.col_offset, part.end_col_offset
    return None
