"""The verdict: who decides, which finding comes first, and what a pass establishes.

Gold gradients, the twin, the order and the random draws decide. Types explain; they decide alone
only where no twin can run.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from lockstep.checker.finding import Finding
from lockstep.checker.inference.types import Typing
from lockstep.checker.simulation import cuts
from lockstep.checker.simulation.gold import Gold, Judged
from lockstep.checker.simulation.twin import Twin
from lockstep.checker.world import World


@dataclass
class Witnesses:
    """What each witness said.

    Args:
        loss: what is wrong with the loss or the inputs themselves, before any gradient.
        apart: how the ranks' programs differ in structure, or that they send messages; then only
            the order, claims and one rank are asked.
        claims: that a claimed value is not as claimed; told where nobody says why.
        failed: the operator with which the step ends, if it does; then too no one else is asked.
        unknown: why there are no true gradients, if there are none.
    """

    order: list[Finding] = field(default_factory=list)
    randomness: list[Finding] = field(default_factory=list)
    loss: list[Finding] = field(default_factory=list)
    backward: list[Finding] = field(default_factory=list)
    after: list[Finding] = field(default_factory=list)
    typing: Typing = field(default_factory=Typing)
    twin: Twin = field(default_factory=lambda: Twin(why_not="not asked"))
    failed: list[Finding] = field(default_factory=list)
    claims: list[Finding] = field(default_factory=list)
    judged: dict[str, Judged] = field(default_factory=dict)
    gold: Gold | None = None
    undecided: list[str] = field(default_factory=list)
    apart: str = ""
    unknown: str = ""

    @property
    def fault(self) -> bool:
        """Whether someone other than types and twin finds a fault."""
        first = (self.order, self.failed, self.randomness, self.loss)
        return any((*first, self.backward, self.after, self.claims))

    @property
    def fails(self) -> bool:
        """Whether the step is wrong."""
        if self.fault or self.twin.findings:
            return True
        return bool(self.twin.why_not and self.typing.findings)


# What says that a gradient is no derivative, and not where a reduction is missing.
_NO_DERIVATIVE = ("LS532", "LS539", "LS551")


def clear(seen: Witnesses) -> None:
    """Drop that gradients are no derivative where they are those of one rank.

    What a step does to its gradients, as clipping them or adding decay, is its own affair if it is
    the same function on every mesh. And of several losses gold does not know which was to reach
    which parameter.
    """
    if seen.gold is None or seen.twin.why_not or seen.twin.findings:
        return
    wrong = [name for name, judged in seen.judged.items() if judged.wrong]
    if not all(f"the gradient of {name}" in seen.twin.compared for name in wrong):
        return
    seen.after = [found for found in seen.after if found.code != "LS551"]
    if len(seen.gold.meaning.outer) > 1:
        seen.backward = [found for found in seen.backward if found.code not in _NO_DERIVATIVE]


def choose(seen: Witnesses) -> list[Finding]:
    """The findings to print, the most telling first; none where the step is right.

    A forward that is wrong makes gradients wrong: then what explains the forward is told, and the
    gradients are left out. Findings of several witnesses on one line are one.
    """
    if not seen.fails:
        return []
    types = seen.typing.findings
    first = [*seen.order, *seen.randomness]
    if seen.order or seen.failed:
        return _distinct([*first, *_beside(seen.failed, types)])
    contradicted = [finding for finding in seen.loss if finding.code == "LS534"]
    if contradicted:  # whatever else is said was said of values that are not as claimed
        return _distinct([*first, *contradicted])
    if seen.loss or seen.twin.loss_differs:
        beside = seen.twin.findings
        if seen.loss and beside and not beside[0].line:  # no value on the way to it is odd
            return _distinct(first or seen.loss)
        return _distinct(first or _beside(types[:2], beside) or beside or seen.loss)
    located = [_explained(finding, types) for finding in (*seen.backward, *seen.after)]
    found = [*first, *located]
    return _distinct(found or seen.claims or types[:2] or seen.twin.findings)


def _beside(types: list[Finding], twin: list[Finding]) -> list[Finding]:
    """What the types say of a forward, with the line from which one rank has other numbers.

    What they object to may be a consequence of what happened there, which is legal by its types.
    """
    if not types or not twin or not twin[0].line:
        return types
    lines = [*types[0].related, twin[0].line, *twin[0].related]
    related = [line for line in dict.fromkeys(lines) if line != types[0].line]
    return [dataclasses.replace(types[0], related=tuple(related)), *types[1:]]


def _explained(finding: Finding, types: list[Finding]) -> Finding:
    """A finding in the words of the types, where what they say is about the same line."""
    for told in types:
        mentioned = finding.line in (told.line, *told.related)
        if mentioned and told.axis in (finding.axis, None):
            related = dict.fromkeys([*told.related, *finding.related])
            fix = told.fix or finding.fix
            return dataclasses.replace(
                told, witness=finding.witness, fix=fix, related=tuple(related)
            )
    return finding


def _distinct(findings: list[Finding]) -> list[Finding]:
    """One finding a line and axis: what a fault entails on its own line is not told again."""
    found: dict[tuple[str, str | None], Finding] = {}
    for finding in findings:
        found.setdefault((finding.line, finding.axis), finding)
    return list(found.values())


def established(world: World, seen: Witnesses, pending: dict[str, str]) -> list[str]:
    """What holds, and under what."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in world.mesh.items())
    lines = []
    if not seen.order:
        count = len(world.ranks[0].graph.schedule)
        lines.append(f"order: {count} collectives, the same on each of {len(world.ranks)} ranks")
    if seen.apart:
        alone = _beside_one_rank(seen.twin)
        judged = "" if seen.twin.why_not or seen.twin.findings else " but by what one rank computes"
        told = f"gradients: not judged{judged}, {seen.apart}"
        return [*lines, told, *([] if seen.twin.why_not == "not asked" else alone)]
    if seen.failed:
        return [*lines, "gradients: not judged, the step does not end"]
    if seen.unknown:
        lines.append(f"gradients: {seen.unknown}")
    changed = [name for name, j in seen.judged.items() if j.updated]
    other = {n for n, j in seen.judged.items() if j.updated or j.returned or not j.exercised}
    right = [n for n, j in seen.judged.items() if not j.wrong and n not in other]
    if right and not (seen.loss or seen.twin.loss_differs):
        lines.append(
            f"gradients: {len(right)} of {len(seen.judged)} parameters' are the derivative"
        )
    if changed:
        lines.append(f"changed by the step itself, and judged by that: {', '.join(changed)}")
    idle = [name for name, j in seen.judged.items() if not j.exercised and not j.wrong]
    if idle:
        lines.append(f"not exercised, their gradient is 0 here: {', '.join(idle)}")
    lines += _beside_one_rank(seen.twin)
    for reason, name, *_ in world.ranks[0].notes.intents:
        lines.append(f"taken as meant: the gradient of {name} ({reason})")
    lines += cuts.told(world)
    if seen.gold is not None and seen.gold.meaning.roots:
        ways = seen.gold.meaning.ways
        said = ", ".join(f"{axis}: {way}" for axis, way in ways.items() if axis in world.wide)
        lines.append(f"under: mesh {mesh}; loss {said or 'of one rank'}; these sizes, this path")
    if pending:
        lines.append("pending: " + ", ".join(f"{way} over {axis}" for axis, way in pending.items()))
    return lines


def _beside_one_rank(twin: Twin) -> list[str]:
    if twin.why_not:
        return [f"one rank: not compared, {twin.why_not}"]
    return [] if twin.findings else [f"one rank: the same numbers for {_compared(twin)}"]


def _compared(twin: Twin) -> str:
    names = list(dict.fromkeys(twin.compared))
    gradients = [name for name in names if name.startswith("the gradient of ")]
    parts = [name for name in names if name not in gradients]
    if gradients:
        parts.append(f"{len(gradients)} gradient{'s' if len(gradients) > 1 else ''}")
    return " and ".join(parts) or "nothing"
