"""Memory that several nodes share: views of a buffer, and what a write through one of them does."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from lockstep._compat import pytree
from lockstep.capture.schemas import view_of
from lockstep.checker.inference.kinds import UNKNOWN, Kind
from lockstep.checker.inference.rules import op_name
from lockstep.checker.inference.rules.context import Fault, is_tensor
from lockstep.checker.inference.rules.writes import covers, partly, under_view

if TYPE_CHECKING:
    from lockstep.checker.inference.flow import Flow


class Buffers:
    """The views among the nodes of one flow; a write retypes the buffer under a view."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._parents: dict[Node, Node] = {}
        self._views: dict[Node, list[Node]] = {}  # of a node, in the order of the program

    def note_view(self, node: Node) -> None:
        """Remember a node that shares the memory of its first argument."""
        piece = op_name(node.target) == "getitem" and node.args[0] in self._parents
        if view_of(node.target) or piece:
            base: Any = node.args[0]
            self._parents[node] = base
            self._views.setdefault(base, []).append(node)

    def write(self, node: Node, target: Node, made: Any) -> None:
        """Type what a node wrote: the view, the buffer under it, and the buffer's other views."""
        kinds = self.flow.kinds
        if not isinstance(made, Kind):
            made = UNKNOWN
        chain, whole, own = [target], True, False
        while chain[-1] in self._parents:
            view, base = chain[-1], self._parents[chain[-1]]
            whole &= is_tensor(base) and covers(view, base)
            own |= self._differs(view)
            chain.append(base)
        root = chain[-1]
        old = kinds.get(root, UNKNOWN)
        if len(chain) > 1:
            new = under_view(made, target, root, whole)
            if new is None:
                self._partial_write(node, root, old, made)
                new = partly(old, made, own) if isinstance(old, Kind) else UNKNOWN
        else:
            new = made
        for view in chain[:-1]:
            kinds[view] = made if is_tensor(view) and covers(target, view) else UNKNOWN
        kinds[root] = new
        self._refresh(root, chain, node)

    def _partial_write(self, node: Node, root: Node, old: Any, made: Kind) -> None:
        if not isinstance(old, Kind) or old.tag != "E" or old.note == "empty":
            return
        if made.tag not in "VS" or self.flow.graphs.claims.get(root) is None:
            return
        self.flow.faults.append(
            Fault(
                "LS511",
                "a value that varies is written into a part of a value that is the same",
                "the ranks' copies are no longer equal, and what reads them takes them to be",
                node,
                None,
                root,
                repr(made),
                str(self.flow.graphs.claims[root]),
            )
        )

    def _differs(self, node: Node) -> bool:
        position = self.flow.position[0][node]
        texts = {
            str(
                [
                    leaf
                    for leaf in pytree.tree_leaves(nodes[position].args)
                    if not isinstance(leaf, Node)
                ]
            )
            for nodes in self.flow.graphs.nodes
        }
        places = {
            tuple(self.flow.position[r].get(n, -1) for n in nodes_in(nodes[position]))
            for r, nodes in enumerate(self.flow.graphs.nodes)
        }
        return len(texts) > 1 or len(places) > 1

    def _refresh(self, root: Node, chain: list[Node], writer: Node) -> None:
        """Type anew what views the buffer beside the view that was written."""
        stop = self.flow.position[0][writer]
        below = [(self.flow.position[0][view], view) for view in self._views.get(root, ())]
        while below:
            place, view = heapq.heappop(below)
            if place > stop:
                break
            for more in self._views.get(view, ()):
                heapq.heappush(below, (self.flow.position[0][more], more))
            if view not in chain:
                peers = [nodes[place] for nodes in self.flow.graphs.nodes]
                kept, self.flow.faults = self.flow.faults, []
                self.flow.kinds[view] = self.flow.typed(view, peers)
                self.flow.faults = kept


def nodes_in(node: Node) -> list[Node]:
    """The nodes that a node reads, in the order of its arguments, also inside lists."""
    return [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, Node)]
