"""The order of collectives: every rank of a group must call the same ones, on the same data.

Two reductions of the same shape in another order on one rank do not hang: the ranks pair up values
that do not belong together. So each call has a fingerprint of what its operand is computed from.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from lockstep import _compat
from lockstep.capture.binding import dtype_name
from lockstep.capture.origin import META
from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.simulate import op_name
from lockstep.checker.world import RankTrace, World


@dataclass(frozen=True)
class Called:
    """One collective of one rank: what it is, and what its operand is computed from.

    Args:
        flow: a digest of the operators and inputs behind the operand.
        splits: of an all-to-all, the rows to each rank and from each.
        behind: gives those inputs in words; it walks the graph, so only for what is told.
    """

    op: str
    axis: str
    operand: str
    flow: str
    line: str
    behind: Callable[[], str] = field(compare=False)
    splits: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None

    def matches(self, other: Called | None) -> bool:
        """Whether the two can meet: the same operation on the same shape and dtype.

        Of an all-to-all with splits each rank has as many rows as it has; see `exchanges`.
        """
        if other is None or self.op != other.op:
            return False
        if self.splits is None or other.splits is None:
            return self.operand == other.operand
        return _of_a_row(self.operand) == _of_a_row(other.operand)

    def exchanges(self, here: int, other: Called, there: int) -> bool:
        """Whether each of two ranks, at these coordinates, sends what the other one expects."""
        if self.splits is None or other.splits is None:
            return True
        (out, into), (back, held) = self.splits, other.splits
        return out[there] == held[here] and into[there] == back[here]

    def __str__(self) -> str:
        where, behind = self.line or "an unknown line", self.behind()
        from_ = f", computed from {behind}" if behind else ""
        return f"{self.op} of {self.operand}{from_}, at {where}"


def judge(world: World) -> list[Finding]:
    """Findings where two ranks of a group would not call the same collective; one an axis."""
    calls = [collectives(trace) for trace in world.ranks]
    found: list[Finding] = []
    for axis in [*world.mesh, "world"]:
        for group in world.groups([axis] if axis in world.mesh else list(world.mesh)):
            sequences = {
                world.ranks[place].rank: [c for c in calls[place] if c.axis == axis]
                for place in group
            }
            finding = first_difference(axis, sequences)
            if finding is not None:
                found.append(finding)
                break
    return found


def collectives(trace: RankTrace) -> list[Called]:
    """A rank's collectives in order."""
    flows = _flows(trace)
    inputs = trace.graph.gm.graph.find_nodes(op="placeholder")
    names_of = {n: spec.name for n, spec in zip(inputs, trace.graph.inputs, strict=True)}
    found = []
    for node in trace.nodes:
        name = op_name(node)
        if not name.startswith("_c10d_functional.") or "wait_tensor" in name:
            continue
        names = [argument.name for argument in _compat.schema(node.target).arguments]
        origin = node.meta.get(META)
        line = origin.line if origin is not None else ""
        extra = [str(arg) for arg in node.args[1:] if isinstance(arg, (str, int))]
        found.append(
            Called(
                " ".join([name.partition(".")[2].rstrip("_"), *extra[:-1]]),
                str(node.args[names.index("group_name")]),
                _operand(node),
                flows[node],
                line,
                functools.partial(_inputs_behind, node, names_of),
                _splits(node),
            )
        )
    return found


def _splits(node: Node) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """The rows that an all-to-all sends and gets; None where they are known at run time alone."""
    if "all_to_all" not in op_name(node):
        return None
    got, sent = node.args[1:3]
    known = all(
        isinstance(rows, (list, tuple)) and not any(isinstance(n, Node) for n in rows)
        for rows in (got, sent)
    )
    return (tuple(sent), tuple(got)) if known else None  # type: ignore[arg-type]


def _of_a_row(operand: str) -> str:
    """What is left of "f32[6, 4]" without the first size."""
    head, _, rest = operand.partition("[")
    return head + rest.partition(", ")[2]


def _operand(node: Node) -> str:
    value = node.all_input_nodes[0].meta.get("val")
    if value is None:
        return "?"
    return f"{dtype_name(value.dtype)}{[str(size) for size in value.shape]}".replace("'", "")


def _inputs_behind(node: Node, names_of: dict[Node, str]) -> str:
    found, todo, done = [], [node], {node}
    while todo:
        here = todo.pop()
        if here in names_of:
            found.append(names_of[here])
        for source in here.all_input_nodes:
            if source not in done:
                done.add(source)
                todo.append(source)
    found.sort()
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _flows(trace: RankTrace) -> dict[Node, str]:
    """For each node a digest of the operators and inputs behind it; constants are left out."""
    names = iter([spec.name for spec in trace.graph.inputs])
    flows: dict[Node, str] = {}
    for node in trace.nodes:
        own = next(names) if node.op == "placeholder" else op_name(node) or node.op
        parts = [own, *(flows[source] for source in node.all_input_nodes)]
        flows[node] = hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]
    return flows


def first_difference(axis: str, sequences: dict[int, list[Called]]) -> Finding | None:
    """A finding for the first collective in which the sequences of a group's ranks differ."""
    ranks = list(sequences)
    uneven = any(call.splits for call in sequences[ranks[0]])
    pairs = itertools.combinations(ranks, 2) if uneven else [(ranks[0], r) for r in ranks[1:]]
    for first, other in pairs:
        a, b = sequences[first], sequences[other]
        swapped = [c.flow for c in a] != [c.flow for c in b]
        swapped = swapped and sorted(c.flow for c in a) == sorted(c.flow for c in b)
        for position in range(max(len(a), len(b))):
            left = a[position] if position < len(a) else None
            right = b[position] if position < len(b) else None
            apart = left is None or right is None or not left.matches(right)
            if not apart and left is not None and right is not None:
                here, there = ranks.index(first), ranks.index(other)
                apart = not left.exchanges(here, right, there)
            if apart or (swapped and left is not None and right and left.flow != right.flow):
                return _differs(axis, position, (first, left), (other, right), apart)
    return None


def _differs(
    axis: str,
    position: int,
    one: tuple[int, Called | None],
    two: tuple[int, Called | None],
    apart: bool,
) -> Finding:
    told = [f"rank {rank}: {call or 'no further collective'}" for rank, call in (one, two)]
    lines = [call.line for _, call in (one, two) if call is not None and call.line]
    why = "the ranks wait for each other for ever"
    if not apart:
        why = "shapes agree, so nothing hangs: each rank gets a sum of values that do not belong"
    return Finding(
        "LS510",
        f"collective {position + 1} on {axis} is not the same on ranks {one[0]} and {two[0]}",
        line=lines[0] if lines else "",
        source=source_of(lines[0]) if lines else "",
        axis=axis,
        got="\n".join(told),
        want=f"the same sequence of collectives on every rank of {axis}",
        why=why,
        fix="call them in an order that no rank, set or dict decides",
        witness="order",
        related=tuple(line for line in dict.fromkeys(lines[1:]) if line != lines[0]),
    )
