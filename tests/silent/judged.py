"""One program beside its wrong twin, and how both are told in a row."""

from __future__ import annotations

import time
from dataclasses import dataclass

import lockstep as ls
from lockstep.checker.finding import Report
from tests.silent.llamas import Program

MOST_UNKNOWN = 0.02  # of the nodes


@dataclass(frozen=True)
class Row:
    """What the checks of a program and of its wrong twin said.

    Args:
        seconds: that the check of the right one took.
    """

    program: Program
    right: Report
    wrong: Report
    seconds: float

    @property
    def unknown(self) -> int:
        """How many nodes have no type along some axis."""
        return sum(self.right.untyped.values())

    @property
    def share(self) -> float:
        """Which share of the nodes they are."""
        return self.unknown / max(self.right.nodes, 1)

    @property
    def silent(self) -> bool:
        """Whether the right program has no finding, and was compared with one rank."""
        compared = any(line.startswith("one rank: the same") for line in self.right.established)
        return self.right.ok and compared

    @property
    def found(self) -> bool:
        """Whether the wrong one has few findings, the first at the line that it should name."""
        first = self.wrong.findings[0] if self.wrong.findings else None
        return first is not None and self.program.line in first.source

    @property
    def holds(self) -> bool:
        """Whether the row is as it should be."""
        return self.silent and self.share <= MOST_UNKNOWN and self.found

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.program.mesh.items())
        findings = str(len(self.right.findings)) if self.silent else "ALARM"
        ops = ", ".join(f"{op} {count}" for op, count in self.right.untyped.most_common(3))
        cells = [
            f"{self.program.name:<40} {mesh:<11} {self.right.nodes:>5} {findings:>8}",
            f"{self.unknown:>4} {100 * self.share:4.1f} %",
            f"{len(self.right.undecided):>9} {self.seconds:5.1f}",
            f" {self.program.without}: {self._twin()}{f'; {ops}' if ops else ''}",
        ]
        return " ".join(cells)

    def _twin(self) -> str:
        if not self.wrong.findings:
            return "MISSED"
        first, count = self.wrong.findings[0], len(self.wrong.findings)
        told = f"{first.code} {first.line}" + (f" and {count - 1} more" if count > 1 else "")
        return told if self.found else f"ELSEWHERE, {told}"


HEAD = (
    f"{'program':<40} {'mesh':<11} {'nodes':>5} {'findings':>8} {'unknown':>11} {'undecided':>9} "
    f"{'s':>5}  without"
)


def judge(program: Program) -> Row:
    """Check a program and its wrong twin; no repair is tried out."""

    def report(left_out: str) -> Report:
        step, make = program.step(left_out), program.make(left_out)
        return ls.check(step, make, mesh=program.mesh, data=program.data, repair_s=0)

    start = time.perf_counter()
    right = report("")
    seconds = time.perf_counter() - start
    return Row(program, right, report(program.without), seconds)
