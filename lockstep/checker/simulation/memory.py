"""Which values are computed over by a later operator of the forward, in their own memory."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from lockstep.capture.schemas import view_of
from lockstep.checker.inference.rules.registry import op_name
from lockstep.checker.inference.rules.writes import written_nodes


def overwritten(nodes: list[Node], forward: Iterable[bool]) -> set[int]:
    """Return the places of values that are something else later, as x is after `x.sub_(y)`.

    Left out are buffers, which are made of nothing and filled later, and what is merely copied
    into: such a value is what was put there.

    Args:
        nodes: of one rank, in order.
        forward: whether each is of the forward.
    """
    base: dict[Node, Node] = {}
    last: dict[Node, int] = {}
    for at, (node, early) in enumerate(zip(nodes, forward, strict=True)):
        if not early or node.op != "call_function":
            continue
        written = written_nodes(node)
        for target in written if op_name(node.target) != "copy" else ():
            last[base.get(target, target)] = at
        shares = written or (node.all_input_nodes[:1] if view_of(node.target) else [])
        if shares:
            base[node] = base.get(shares[0], shares[0])
    return {
        at
        for at, node in enumerate(nodes)
        if node.all_input_nodes and last.get(base.get(node, node), -1) > at
    }
