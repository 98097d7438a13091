"""A graph that a pass made, with the notes of the one that was captured: what the types judge anew.

A pass keeps the nodes' names; one that puts a node in another's place says so in its meta.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.fx import Graph, GraphModule, Node

from lockstep.capture.checking import Checking, Notes

WAS = "lockstep_was"  # in a node's meta: the name of the node in whose place it is


def again(checking: Checking, gm: Any) -> Checking:
    """What a capture would have noted of another graph of the same step.

    Args:
        checking: of a finished capture that ships.
        gm: what a pass made of its program; it is not changed.
    """
    assert checking.graph is not None
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    names = {node.meta.get(WAS, node.name): node for node in graph.nodes}
    labels = set(checking.labels)

    def now(node: Node | None) -> Node | None:
        while node in labels:
            node = node.args[0]  # type: ignore[assignment, union-attr]
        return names.get(node.name) if node is not None else None

    made = Checking(ships=True)
    made.graph = dataclasses.replace(checking.graph, gm=GraphModule({}, graph))
    made.notes = _moved(checking.notes, now)
    return made


def _moved(notes: Notes, now: Any) -> Notes:
    """Notes with the nodes of another graph; of what is no more there, nothing."""
    claims = [dataclasses.replace(one, node=now(one.node)) for one in notes.claims]
    gradients: dict[Node, list[Node]] = {}
    for node, held in notes.cotangents.items():
        found = [now(one) for one in held]
        if now(node) is not None and None not in found:
            gradients[now(node)] = found
    return dataclasses.replace(
        notes,
        claims=[one for one in claims if one.node is not None],
        moves=[(*how, now(before), now(after), line) for *how, before, after, line in notes.moves],
        cotangents=gradients,
        roots=[(now(root), now(seed)) for root, seed in notes.roots if now(root) is not None],
        consumed={key: now(node) for key, node in notes.consumed.items() if now(node) is not None},
        draws=[],
        cuts={now(node) for node in notes.cuts} - {None},
        outer={now(node): line for node, line in notes.outer.items() if now(node) is not None},
        functions={now(node): of for node, of in notes.functions.items() if now(node) is not None},
    )
