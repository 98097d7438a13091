"""One program of this folder under the checker, beside what is expected of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lockstep.checker.check import check
from lockstep.checker.finding import Finding
from tests.fault_cases.expected import Expected
from tests.fault_cases.training import Program


@dataclass
class Outcome:
    """What the checker said of a program.

    Args:
        expected: what a wrong program's finding should name; None for a right program.
        error: why it could not be checked, if it could not.
    """

    name: str
    expected: Expected | None = None
    findings: list[Finding] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    error: str = ""
    seconds: float = 0.0

    @property
    def flagged(self) -> bool:
        return bool(self.findings) and not self.error

    @property
    def silent(self) -> bool:
        return not self.findings and not self.error

    @property
    def placed(self) -> bool | None:
        """Whether a finding names the line and axis; None where no line is expected."""
        if self.expected is None or not self.expected.texts:
            return None
        return any(
            finding.axis in (self.expected.axis, None) and text in finding.source
            for finding in self.findings
            for text in self.expected.texts
        )


def judge(name: str, program: Program, expected: Expected | None) -> Outcome:
    """Check a program; no repairs are tried."""
    outcome, start = Outcome(name, expected), time.perf_counter()
    try:
        report = check(program.step, program.make, mesh=program.mesh, data=program.data, repair_s=0)
        outcome.findings, outcome.undecided = report.findings, report.undecided
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    outcome.seconds = time.perf_counter() - start
    return outcome


@dataclass(frozen=True)
class Figures:
    """How often the checker was right about programs."""

    right: int
    silent: int
    wrong: int
    flagged: int
    lines: int
    placed: int

    @property
    def hold(self) -> bool:
        """All right programs silent, 20 of 22 wrong ones flagged, 16 of 21 lines named."""
        enough = self.flagged * 22 >= 20 * self.wrong and self.placed * 21 >= 16 * self.lines
        return self.silent == self.right and self.wrong > 0 and enough


def figures(outcomes: list[Outcome]) -> Figures:
    """Count outcomes."""
    right = [o for o in outcomes if o.expected is None]
    wrong = [o for o in outcomes if o.expected is not None]
    placed = [o.placed for o in wrong if o.placed is not None]
    return Figures(
        right=len(right),
        silent=sum(o.silent for o in right),
        wrong=len(wrong),
        flagged=sum(o.flagged for o in wrong),
        lines=len(placed),
        placed=sum(placed),
    )
