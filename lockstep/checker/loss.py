"""How the ranks' losses make up the job's: what backward() really differentiates."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.checker.compare import same_along
from lockstep.checker.finding import Finding
from lockstep.checker.simulate import Simulation, Values, op_name
from lockstep.checker.lines import source_of
from lockstep.spmd.types import Type

# A pending sum stays one through these.
_LINEAR = {
    f"aten.{name}"
    for name in ("alias view _unsafe_view clone add sub neg mul div sum mean detach _to_copy "
    "squeeze unsqueeze select reshape").split()
}  # fmt: skip


@dataclass
class Meaning:
    """Per axis: "same" (each rank computes the one loss), "sum" or "mean" of the ranks' own."""

    ways: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def loss_meaning(sim: Simulation, seen: Values) -> Meaning:
    """Read how losses combine from claims of P, else from whether all ranks hold the same number.

    Args:
        seen: the values of the traced run.
    """
    meaning = Meaning({axis: "same" for axis in sim.world.mesh})
    if not sim.world.ranks[0].notes.roots:
        return meaning
    said: dict[str, Type] = {}
    for root, _ in sim.world.ranks[0].notes.roots:
        said = {**claims_behind(sim, sim.at[0][root]), **said}
    for axis in sim.world.wide:
        kind = said.get(axis)
        if kind is not None and kind.kind == "P":
            meaning.ways[axis] = kind.factor or "sum"
            continue
        for root, _ in sim.world.ranks[0].notes.roots:
            row = sim.at[0][root]
            if not same_along(sim.world, seen[row], axis):
                meaning.findings.append(_undeclared(sim, row, axis))
                break
    return meaning


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
