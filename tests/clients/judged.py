"""What a check says of a program, as it is and with one of its collectives left out."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

import lockstep as ls
from lockstep.checker.finding import Finding, Report
from tests.clients.program import Program
from tests.clients.removed import Called, Watch


@dataclass
class Judgement:
    """One check of a program.

    Args:
        called: the collectives that a rank calls in a step, in order; of a right program.
        without: the one that was left out.
    """

    program: Program
    report: Report
    seconds: float
    called: list[Called] = field(default_factory=list)
    without: Called | None = None

    @property
    def silent(self) -> bool:
        """Whether nothing was found, and nothing left open."""
        return not self.report.findings and not self.report.undecided

    @property
    def unknown(self) -> float:
        """The share of nodes that the types have no rule for."""
        return sum(self.report.unknown_ops.values()) / max(self.report.nodes, 1)

    @property
    def counted(self) -> bool:
        """Whether as many collectives were seen as the captured step has; those of dp aside."""
        order = next(line for line in self.report.established if line.startswith("order: "))
        return self.program.data != () or order.startswith(f"order: {len(self.called)} ")

    @property
    def named(self) -> str:
        """Where a finding names what was left out: its "line", a line to "see", or nowhere."""
        if self.without is None:
            return ""
        if any(self.without.holds(finding.line) for finding in self.report.findings):
            return "line"
        rest = [line for finding in self.report.findings for line in _mentioned(finding)]
        return "see" if any(self.without.holds(line) for line in rest) else ""


def _mentioned(finding: Finding) -> list[str]:
    """The lines that a finding tells beside its own."""
    return re.findall(r"[\w/.-]+\.py:\d+", str(finding))


def judge(program: Program, leave_out: int | None = None) -> Judgement:
    """Check a program, with the collective in one place of its calls left out."""
    watch, first = Watch(leave_out), []

    def make(mesh: Any) -> Any:
        if watch.called and not first:
            first.extend(watch.called)
        watch.begin()
        return program.make(mesh)

    start = time.perf_counter()
    with watch.watching():
        report = ls.check(program.step, make, mesh=program.mesh, data=program.data, repair_s=0)
    called = [] if program.data else first
    return Judgement(program, report, time.perf_counter() - start, called)


def left_out(right: Judgement, place: int) -> Judgement:
    """Check a program without one of the collectives that it was seen to call."""
    judged = judge(right.program, place)
    judged.called, judged.without = [], right.called[place]
    return judged
