"""Fixes of what a script's check finds, tried out: its set-up runs anew from edited text.

A fix is verified only where every witness is silent with it, and no other step became worse. What
ran is the very text that the patch makes of the user's files; the files stay as they are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from lockstep.checker.repair.edits import CannotEdit, Edit
from lockstep.checker.repair.repair import Examined, repaired
from lockstep.report.check_world import Job, Judged, JudgedStep, examine


def repair(job: Job, judged: Judged, budget_s: float) -> None:
    """Try fixes of each step's findings, cheapest communication first; the reports tell.

    Args:
        job: as it was judged.
        budget_s: seconds for all of them; a run that goes on then is ended.
    """
    end = time.monotonic() + budget_s
    ran = judged.ran or job
    for step in judged.steps:
        if step.seen is None or step.report.ok:
            continue

        def again(edits: Sequence[Edit], step: JudgedStep = step) -> Examined:
            left = max(end - time.monotonic(), 0.1)
            limit = min(job.limit_s, left)
            changed = dataclasses.replace(ran, edits=tuple(edits), limit_s=limit)
            now = examine(changed, hopeful=len(step.report.findings) == 1)
            return _not_worse(judged, now, step.step)

        with step.report.timed("repair"):
            left = end - time.monotonic()
            step.report.findings = repaired(step.report, step.seen, again, left)


def _not_worse(before: Judged, now: Judged, name: str) -> Examined:
    """What the witnesses say of one step now.

    Raises:
        CannotEdit: the step is not there any more, or another one that was is worse than it was.
    """
    found = {step.step: step for step in now.steps}
    for old in before.steps:
        new = found.get(old.step)
        if new is None or (old.step != name and _faults(new) > _faults(old)):
            raise CannotEdit(f"{old.step} is worse than before")
    seen = found[name].seen
    if seen is None:
        raise CannotEdit(f"{name} is not captured any more")
    return found[name].report, seen


def _faults(step: JudgedStep) -> float:
    return float("inf") if step.seen is None else len(step.report.findings)
