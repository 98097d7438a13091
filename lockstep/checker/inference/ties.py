"""Which equal values are R and which are I, and where the two meet.

Both are the same numbers, so the forward cannot tell them apart; the gradient can: that of an R is
still a sum over the ranks, that of an I is whole. Claims and typed collectives say which; a
collective of the user's own is judged by the gradient that comes out of its backward. Values that
no gradient reaches are neutral.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from lockstep.checker.inference.flow import Flow
from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules.context import Fault, is_tensor, shape_of
from lockstep.checker.inference.rules.registry import op_name
from lockstep.checker.source import line_of
from lockstep.spmd.types import I, R, Type


@dataclass
class Ties:
    """R or I of the forward values of one axis.

    Args:
        carries: the nodes whose value a gradient reaches; None where the step has no backward.
    """

    flow: Flow
    carries: frozenset[Node] | None
    ties: dict[Node, Type] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def run(self) -> Ties:
        """Walk the forward in order."""
        graphs = self.flow.graphs
        early = ("input", "forward")
        self._forward_lines = {line_of(n) for n, p in graphs.phases.items() if p in early}
        for node in graphs.nodes[0]:
            if graphs.phases.get(node, "forward") not in ("input", "forward"):
                continue
            claim = graphs.claims.get(node)
            if node.op == "call_function":
                self._visit(node, claim)
            if claim is not None:
                self.ties.pop(node, None)
                if claim.kind in "RI":
                    self.ties[node] = claim
        return self

    def _visit(self, node: Node, claim: Type | None) -> None:
        if node in self.flow.graphs.moves:
            return
        read = [n for n in node.all_input_nodes if n in self.ties and self._live(n)]
        read = [n for n in read if not self._differs(n)]  # a write may have changed it
        pieces = [n for n in read if n in self.flow.picked.get(node, ())]
        if pieces and (len(pieces) < len(read) or self._put_together(pieces[0])):
            read = [n for n in read if n not in pieces]
        held = {self.ties[n] for n in read}
        made = self.flow.kinds.get(node)
        single = isinstance(made, Kind)
        equal = made.same if isinstance(made, Kind) else _all_same(made)
        if not held:
            return
        if I in held and self._meets(node, read, equal):
            return
        if not equal:
            return
        tie = I if I in held else R
        if tie is I and single and self._reduced_on_the_way(node, read):
            tie = R
        self.ties[node] = tie

    def _put_together(self, piece: Node) -> bool:
        """Whether the gradient of what each rank reads its own piece of is whole."""
        while op_name(piece.target) in ("getitem", "split", "split_with_sizes"):
            piece = piece.all_input_nodes[0]
        return self._gradient_is_whole(piece)

    def _live(self, node: Node) -> bool:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            return False
        return self.carries is None or node in self.carries or not is_tensor(node)

    def _meets(self, node: Node, read: list[Node], equal: bool) -> bool:
        """Whether an I is beside an R, or in something that is not the same on all ranks."""
        whole = [n for n in read if self.ties[n] is I]
        replicated = [n for n in read if self.ties[n] is R]
        if replicated:
            self._report_pair(node, replicated[0], whole[0])
            return True
        if equal:
            return False
        others = [n for n in node.all_input_nodes if self._differs(n)]
        for operand in whole:
            if self._gradient_is_whole(operand) or not is_tensor(node):
                continue
            self._report_single(node, operand, others[0] if others else None)
            return True
        return False

    def _report_pair(self, node: Node, replicated: Node, whole: Node) -> None:
        self.faults.append(
            Fault(
                "LS503",
                "a replicated value meets an invariant one",
                "the gradient of one is still a sum over the ranks, that of the other is whole",
                node,
                replicated,
                whole,
                "R and I",
                "both R or both I",
            )
        )

    def _report_single(self, node: Node, operand: Node, other: Node | None) -> None:
        kind = self.flow.kinds.get(other) if other is not None else None
        met = repr(kind) if isinstance(kind, Kind) else "what differs on each rank"
        if isinstance(kind, Kind) and kind.tag == "P" and self._already_said(node):
            return
        if self._own_backward(operand):
            return
        self.faults.append(
            Fault(
                "LS504",
                f"an invariant value meets {met}",
                "each rank's gradient of it is one term of a sum, and nothing adds the terms up",
                node,
                operand,
                other,
                f"I and {met}",
                "R",
            )
        )

    def _already_said(self, node: Node) -> bool:
        return any(fault.node is node for fault in self.flow.faults)

    def _differs(self, node: Node) -> bool:
        kind: Any = self.flow.kinds.get(node)
        return isinstance(kind, Kind) and not kind.same

    def _own_backward(self, operand: Node) -> bool:
        """Report a conversion whose own backward hands a partial on, if there is one on the way.

        Returns:
            Whether there is a conversion with a backward of its own: one that reduces is no fault.
        """
        node: Node | None = operand
        while node is not None and node.op == "call_function":
            source = next((n for n in node.all_input_nodes if self.ties.get(n) is I), None)
            made, reduces = self._written_backward(node, source)
            if reduces:
                return True
            if made is not None:
                if all(fault.node is not made for fault in self.faults):
                    self.faults.append(
                        Fault(
                            "LS518",
                            "the backward of a Function hands a partial gradient to an invariant "
                            "value",
                            "its forward is that of a conversion from I to R, whose backward sums "
                            "the gradient over the ranks; this one does not",
                            made,
                            source,
                            None,
                            "P",
                            "the sum over the ranks",
                        )
                    )
                return True
            node = source
        return False

    def _written_backward(self, node: Node, source: Node | None) -> tuple[Node | None, bool]:
        """The first node of a backward that the user wrote, between two values' gradients.

        Returns:
            The node, if there is one; and whether anything between the gradients is reduced.
        """
        if source is None or len(node.all_input_nodes) > 1 or shape_of(node) != shape_of(source):
            return None, False  # no conversion: between its gradients may lie another branch
        cotangents = self.flow.graphs.cotangents
        end, start = cotangents.get(source), cotangents.get(node)
        if start is None or end is None:
            return None, False
        reached, found, place = {start}, None, self.flow.position[0]
        for after in self.flow.graphs.nodes[0][place[start] : place[end]]:
            if any(n in reached for n in after.all_input_nodes):
                reached.add(after)
                name = op_name(after.target)
                if "_c10d" in name and "reduce" in name:
                    return None, True
                if found is None and line_of(after) not in self._forward_lines:
                    found = after
        return found, False

    # -- what the backward says

    def _gradient(self, node: Node) -> Kind | None:
        held = self.flow.graphs.cotangents.get(node)
        kind: Any = self.flow.kinds.get(held) if held is not None else None
        return kind if isinstance(kind, Kind) else None

    def _gradient_is_whole(self, node: Node) -> bool:
        kind = self._gradient(node)
        return kind is not None and kind.same

    def _reduced_on_the_way(self, node: Node, read: list[Node]) -> bool:
        """Whether this is an I->R conversion that only its backward tells of."""
        kind = self._gradient(node)
        if kind is None or kind.tag != "P" or len(read) != 1:
            return False
        if shape_of(node) != shape_of(read[0]):
            return False
        return self._gradient_is_whole(read[0])


def _all_same(made: Any) -> bool:
    return isinstance(made, list) and all(isinstance(k, Kind) and k.same for k in made)
