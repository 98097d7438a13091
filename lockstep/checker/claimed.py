"""Values that are claimed to be the same on all ranks of an axis, and are not."""

from __future__ import annotations

from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.compare import same_along
from lockstep.checker.simulation.gold import Gold
from lockstep.spmd.types import V


def broken(gold: Gold) -> list[Finding]:
    """What claims of R and I the replayed values contradict; those of inputs are judged before."""
    sim, world = gold.sim, gold.world
    found = []
    for claim in world.ranks[0].notes.claims:
        row = sim.at[0].get(claim.node)
        if row is None or row in sim.inputs or row not in gold.seen:
            continue
        for axis, kind in claim.types.items():
            if kind.kind in "RI" and axis in world.wide:
                if not same_along(world, gold.seen[row], axis):
                    found.append(claim_finding(claim.line, claim.what, axis, str(kind)))
    return found


def claim_finding(line: str, what: str, axis: str, want: str) -> Finding:
    """What is told of a claim that does not hold."""
    return Finding(
        "LS538",
        f"{what} claims a value to be the same along {axis}, and it differs",
        line=line,
        source=source_of(line),
        axis=axis,
        got=str(V),
        want=want,
        why="whoever takes it for one value of all ranks goes on with another one on each",
        witness="gold",
    )
