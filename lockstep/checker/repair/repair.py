"""Repairs that were tried: applied to the running code, and verified by every witness.

Candidates come cheapest first. One is printed as verified only if the whole check is silent with
it, and a run on one rank could be compared; a fault that shows in gradients alone may do without
one where the repair leaves the losses as they are. What was tried and fails is not printed.
"""

from __future__ import annotations

import ast
import dataclasses
import time
from collections.abc import Callable, Sequence

import torch

from lockstep.checker.finding import Finding, Report
from lockstep.checker.lines import source_of
from lockstep.checker.phrases import AFTER
from lockstep.checker.repair.edits import Edit
from lockstep.checker.repair.repairs import Repair
from lockstep.checker.repair.variants import variants
from lockstep.checker.simulation.compare import same
from lockstep.checker.verdict import Witnesses

Examined = tuple[Report, Witnesses]
Again = Callable[[Sequence[Edit]], Examined]


def repaired(report: Report, seen: Witnesses, again: Again, budget_s: float) -> list[Finding]:
    """Return a report's findings with fixes that were tried out; it counts how many were.

    Where several faults are independent, each repair stays in place while the next one is sought;
    they are verified together.

    Args:
        again: examines the step anew, with lines of its code replaced.
        budget_s: seconds after which no further candidate is tried.
    """
    end = time.monotonic() + budget_s
    kept: list[Edit] = []
    left, last = len(report.findings), seen
    failed: set[str] = set()
    for finding in report.findings:
        for edit in candidates(finding, seen):
            if time.monotonic() > end:
                break
            report.tried += 1
            now = _tried([*kept, edit], again)
            if now is not None and len(now[0].findings) < left:
                left, last = len(now[0].findings), now[1]
                kept.append(edit)
                break
            failed.add(edit.text)
    if len(kept) == len(report.findings) and _holds(report.findings, seen, left, last):
        return [_fixed(f, edit) for f, edit in zip(report.findings, kept, strict=True)]
    failed -= {edit.text for edit in kept}
    return [dataclasses.replace(f, fix=None) if f.fix in failed else f for f in report.findings]


def candidates(finding: Finding, seen: Witnesses) -> list[Edit]:
    """Edits that may repair a finding, the likeliest and cheapest first."""
    found: list[Edit] = []
    for told, repairs in zip(seen.typing.findings, seen.typing.repairs, strict=False):
        if told.axis == finding.axis and told.line == finding.line:
            for repair in repairs:
                found += _edits(repair, seen)
    if finding.fix and finding.fix.endswith(AFTER):
        found += _edits(Repair("", finding.fix.removesuffix(AFTER)), seen)
    elif finding.fix:
        found.append(Edit(finding.line, finding.fix))
    if finding.axis is not None and finding.witness != "order":
        texts = variants(finding.source, finding.axis)
        found += [Edit(finding.line, text) for text in texts]
    usable = (e for e in found if e.line and _is_statement(e.text) and e.text != source_of(e.line))
    return list(dict.fromkeys(usable))


def _edits(repair: Repair, seen: Witnesses) -> list[Edit]:
    """A repair as an edit; one that is to be put in goes behind the last call of backward()."""
    if repair.line or seen.gold is None:
        return [Edit(repair.line, repair.text)]
    lines = seen.gold.world.ranks[0].notes.backwards[-1:]
    ways = ('"sum"', '"mean"') if '"sum"' in repair.text else ('"mean"', '"sum"')
    texts = (repair.text, repair.text.replace(*ways))  # a mean over 2 ranks looks like a half
    return [Edit(line, f"{source_of(line)}\n{text}") for line in lines for text in texts]


def _is_statement(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return "..." not in text


def _tried(edits: list[Edit], again: Again) -> Examined | None:
    """Examine the step with lines changed; None where it cannot be."""
    try:
        report, seen = again(edits)
    except Exception:  # a line that was changed may fail in any way: it is no repair then
        return None
    return None if seen.apart or seen.unknown else (report, seen)


def _holds(findings: list[Finding], before: Witnesses, left: int, after: Witnesses) -> bool:
    """Whether all witnesses are silent, and were enough to tell."""
    if left:
        return False
    if not after.twin.why_not:
        return True
    backward_alone = all(f.witness in ("gold", "after") for f in findings) and not before.loss
    return backward_alone and _same_losses(before, after)


def _same_losses(before: Witnesses, after: Witnesses) -> bool:
    old, new = _losses(before), _losses(after)
    return len(old) == len(new) and all(same(a, b) for a, b in zip(old, new, strict=True))


def _losses(seen: Witnesses) -> list[torch.Tensor]:
    if seen.gold is None:
        return []
    sim = seen.gold.sim
    roots = [sim.at[0][root] for root, _ in sim.world.ranks[0].notes.roots]
    return [value for row in roots for value in seen.gold.seen[row]]


def _fixed(finding: Finding, edit: Edit) -> Finding:
    place = edit.line if edit.line != finding.line else ""
    return dataclasses.replace(finding, fix=edit.text, verified=True, fix_line=place)
