"""How the ranks' losses make up the job's: what backward() really differentiates."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.checker.compare import same_along
from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulate import Simulation, Values, op_name
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
    """

    roots: list[dict[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    axes: tuple[str, ...] = ()

    @property
    def ways(self) -> dict[str, str]:
        """Of all backwards together: a mean along an axis if one of them is one, and so on."""
        found = dict.fromkeys(self.axes, "same")
        for way in ("sum", "mean"):
            found |= {a: way for root in self.roots for a, held in root.items() if held == way}
        return found


def loss_meaning(sim: Simulation, seen: Values) -> Meaning:
    """Read how losses combine from claims of P, else from whether all ranks hold the same number.

    What a check itself differentiates, of a step without a loss, is a sum where it varies.

    Args:
        seen: the values of the traced run.
    """
    meaning = Meaning(axes=tuple(sim.world.mesh))
    trace = sim.world.ranks[0]
    for root, seed in trace.notes.roots:
        row = sim.at[0][root]
        said = claims_behind(sim, row)
        ways = dict.fromkeys(sim.world.mesh, "same")
        meaning.roots.append(ways)
        for axis in sim.world.wide:
            kind = said.get(axis)
            if kind is not None and kind.kind == "P":
                ways[axis] = kind.factor or "sum"
            elif not same_along(sim.world, seen[row], axis):
                if seed is not None:
                    ways[axis] = "sum"
                elif all(known.axis != axis for known in meaning.findings):
                    meaning.findings.append(_undeclared(sim, row, axis))
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
