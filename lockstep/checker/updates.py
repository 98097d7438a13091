"""Parameters that a step changes by itself, as an optimizer written by hand does.

Such a step may leave no gradient behind, so the change is what is judged: copies of one parameter
stay the same, and beside one rank the changed parameter is the same too.
"""

from __future__ import annotations

from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.compare import same_along
from lockstep.checker.simulation.gold import Gold
from lockstep.checker.simulation.simulate import Simulation, op_name


def writes_of(sim: Simulation, row: int) -> list[int]:
    """The rows after the backward that write into an input's value, in order."""
    held, found = {sim.rows[row][0]}, []
    for at, nodes in enumerate(sim.rows):
        node = nodes[0]
        if not node.args or node.args[0] not in held:
            continue
        name = op_name(node)
        if name in ("aten.alias", "aten.view", "aten.detach"):
            held.add(node)
        elif name.endswith("_") and sim.phase[at] != "forward":
            held.add(node)
            found.append(at)
    return found


def drifting(gold: Gold, name: str) -> Finding | None:
    """The copies of a parameter that differ once the step has changed them."""
    row = gold.parameters[name]
    apart = [
        axis
        for axis in gold.placement.tied[name]
        if axis in gold.world.wide
        and not same_along(gold.world, gold.values[row], axis)
        and same_along(gold.world, gold.seen[row], axis)
    ]
    if not apart:
        return None
    writes = writes_of(gold.sim, row)
    line = gold.sim.line(writes[0]) if writes else ""
    return Finding(
        "LS550",
        f"{name} is changed by a gradient that differs along {apart[0]}",
        line=line,
        source=source_of(line),
        axis=apart[0],
        got="copies that are no longer the same",
        want="the whole gradient, reduced once",
        why=f"each rank of {apart[0]} steps by its own part, and the replicas drift apart",
        fix=f"add up the gradient over {apart[0]} before this line",
        witness="after",
    )


def drifted(gold: Gold) -> list[Finding]:
    """The first parameter whose copies the step has made differ, where no gradient is known."""
    found = (drifting(gold, name) for name in gold.parameters if gold.updated(name))
    return [finding for finding in found if finding is not None][:1]
