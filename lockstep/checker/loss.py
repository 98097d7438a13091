"""How the ranks' losses make up the job's: what backward() really differentiates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.compare import group_sum, relation, same, same_along
from lockstep.checker.simulation.simulate import Simulation, Values, op_name
from lockstep.checker.world import World
from lockstep.spmd.types import Type

# A pending sum stays one through these.
_LINEAR = {
    f"aten.{name}"
    for name in ("alias view _unsafe_view clone add sub neg mul div sum mean detach _to_copy "
    "squeeze unsqueeze select reshape").split()
}  # fmt: skip


@dataclass
class Meaning:
    """How losses combine, per axis: "same" (each rank has the one loss), "sum" or "mean" of parts.

    Args:
        roots: for each backward() in order.
        inner: the backwards that give no parameter a gradient, beside others that do.
    """

    roots: list[dict[str, str]] = field(default_factory=list)
    inner: frozenset[int] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    axes: tuple[str, ...] = ()

    @property
    def ways(self) -> dict[str, str]:
        """Of all backwards together: a mean along an axis if one of them is one, and so on."""
        found = dict.fromkeys(self.axes, "same")
        for way in ("sum", "mean"):
            found |= {a: way for root in self.outer for a, held in root.items() if held == way}
        return found

    @property
    def outer(self) -> list[dict[str, str]]:
        """How the losses combine that parameters get gradients from."""
        return [root for number, root in enumerate(self.roots) if number not in self.inner]


def loss_meaning(sim: Simulation, seen: Values) -> Meaning:
    """Read how losses combine from claims of P, else from whether all ranks hold the same number.

    What a check itself differentiates, of a step without a loss, is a sum where it varies.

    Args:
        seen: the values of the traced run.
    """
    meaning = Meaning(axes=tuple(sim.world.mesh), inner=inner_roots(sim))
    trace = sim.world.ranks[0]
    for number, (root, seed) in enumerate(trace.notes.roots):
        row = sim.at[0][root]
        said = claims_behind(sim, row)
        ways = dict.fromkeys(sim.world.mesh, "same")
        meaning.roots.append(ways)
        for axis in sim.world.wide:
            kind = said.get(axis)
            if kind is not None and kind.kind == "P":
                ways[axis] = kind.factor or "sum"
            elif number not in meaning.inner and not same_along(sim.world, seen[row], axis):
                if seed is not None:
                    ways[axis] = "sum"
                elif all(known.axis != axis for known in meaning.findings):
                    meaning.findings.append(_undeclared(sim, row, axis))
    return meaning


def inner_roots(sim: Simulation) -> frozenset[int]:
    """The backwards that reach no parameter, as of a penalty on the gradient by an input.

    They run one after the other, so what one reaches lies before where the next begins.
    """
    at, trace = sim.at[0], sim.world.ranks[0]
    rows = zip(sim.inputs, trace.graph.inputs, strict=True)
    held = {sim.rows[row][0] for row, spec in rows if spec.kind == "param"}
    reached = [at[b] for f, backs in trace.notes.cotangents.items() if f in held for b in backs]
    starts: list[int] = []
    for root, _ in trace.notes.roots:
        seeds = [at[user] for user in root.users if op_name(user) == "aten.ones_like"]
        seeds = [row for row in seeds if row > max(starts, default=-1)]
        if not seeds:
            return frozenset()  # begun by a seed of its own
        starts.append(min(seeds))
    ends = [*starts, len(sim.rows)][1:]
    inner = [
        number
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        if not any(start < row < end for row in reached) and not _adds_up(sim, start, end)
    ]
    return frozenset(inner) if len(inner) < len(starts) else frozenset()


def _adds_up(sim: Simulation, start: int, end: int) -> bool:
    """Whether what a backward gave is in a parameter's gradient, and in no loss of a later one: a
    later backward hands on what all of them add up to."""
    trace = sim.world.ranks[0]
    rows = range(start + 1, end)
    given = {n for n in (sim.rows[r][0] for r in rows) if trace.phases.get(n.name) == "backward"}
    held = set(trace.grads.values())
    ended = [node for node in trace.nodes if node.name in held]
    roots = [root for root, _ in trace.notes.roots]
    return bool(given & _behind(ended)) and not given & _behind(roots)


def _behind(nodes: list[Node]) -> set[Node]:
    seen, todo = set[Node](), list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return seen


def claims_behind(sim: Simulation, row: int) -> dict[str, Type]:
    """The types claimed for a value, or for what it is a linear function of, per axis."""
    trace = sim.world.ranks[0]
    moved: dict[str, dict[str, Type]] = {}
    for _, axis, _, dst, _, _, after, _ in trace.notes.moves:
        if after is not None:
            moved.setdefault(after.name, {})[axis] = dst
    found: dict[str, Type] = {}
    todo, done = [sim.rows[row][0]], set()
    while todo:
        node = todo.pop(0)
        if node in done:
            continue
        done.add(node)
        for axis, kind in {**moved.get(node.name, {}), **trace.claims.get(node.name, {})}.items():
            found.setdefault(axis, kind)
        if op_name(node) in _LINEAR:
            todo += node.all_input_nodes
    return found


def _undeclared(sim: Simulation, row: int, axis: str) -> Finding:
    line = sim.line(row)
    return Finding(
        "LS533",
        f"the loss differs along {axis}, and nothing says how the ranks' losses make up one",
        line=line,
        source=source_of(line),
        axis=axis,
        got="V",
        want="I, P(sum) or P(mean)",
        why="backward() differentiates on each rank what that rank holds",
        fix=f'loss = ls.loss(loss, {axis}="mean"), if each rank holds its share of a mean; '
        "else reduce what varies before it",
        witness="gold",
    )


def total(world: World, losses: list[list[torch.Tensor]], ways: list[dict[str, str]]) -> list[Any]:
    """The job's loss on each rank, made of the ranks' as `ways` say, one for each backward()."""
    made = [_combined(world, held, way) for held, way in zip(losses, ways, strict=True)]
    return [sum(parts[1:], parts[0]) for parts in zip(*made, strict=True)]


def _combined(world: World, values: list[torch.Tensor], ways: dict[str, str]) -> list[Any]:
    for axis, way in ways.items():
        if way != "same":
            values = group_sum(world, values, [axis])
        if way == "mean":
            values = [value / world.mesh[axis] for value in values]
    return values


def miscounted(
    sim: Simulation, roots: list[int], seen: Values, ways: list[dict[str, str]], one: torch.Tensor
) -> Finding | None:
    """Whether the ranks' losses would make up the one-rank loss if they were counted otherwise.

    Args:
        roots: the rows of the losses, of which none is wrong by itself.
        ways: how each is said to combine; see `Meaning`.
        one: the loss on one rank.
    """
    losses = [seen[row] for row in roots]
    for axis in sim.world.wide:
        for said, other in (("mean", "sum"), ("sum", "mean")):
            if any(way[axis] != said for way in ways):
                continue
            counted = total(sim.world, losses, [{**way, axis: other} for way in ways])
            if all(same(value, one) for value in counted):
                how = relation(total(sim.world, losses, ways)[0], one)
                return _miscounted(sim.line(roots[0]), axis, said, other, how)
    return None


def _miscounted(line: str, axis: str, said: str, other: str, how: str) -> Finding:
    return Finding(
        "LS540",
        "the program does not compute what it computes on one rank",
        line=line,
        source=source_of(line),
        axis=axis,
        got=f"the {said} of the ranks' losses over {axis} is {how}",
        want=f"a loss whose {said} over {axis} is the loss of one rank",
        why=f"the losses here add up to it as a {other}: they are scaled already, or said wrongly",
        witness="twin",
    )
