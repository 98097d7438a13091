"""What a check says of layouts, as they are and with one collective of the package left out."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import lockstep as ls
from lockstep.capture.origin import short_path
from lockstep.checker.finding import Report
from lockstep.spmd import claims
from tests.mutants.sites import Site
from tests.parallel.layouts import Case

ROOM = 6  # cases that are tried for one site


@dataclass
class Right:
    """A layout as it is."""

    case: Case
    report: Report
    seconds: float
    called: set[tuple[str, int]] = field(repr=False)

    @property
    def silent(self) -> bool:
        """Whether nothing was found, and one rank computes the same."""
        same = any(line.startswith("one rank: the same") for line in self.report.established)
        return self.report.ok and same


@dataclass
class Mutant:
    """One collective left out, and what the checks of layouts that call it say.

    Args:
        tried: each layout with its report, or the error that it ended with.
    """

    site: Site
    tried: list[tuple[Case, Report | Exception]]
    seconds: float

    @property
    def caught(self) -> bool:
        """Whether some check found something."""
        return any(isinstance(r, Report) and r.findings for _, r in self.tried)

    @property
    def equivalent(self) -> bool:
        """Whether every layout's gradients are those of one process all the same."""
        reports = [r for _, r in self.tried]
        return bool(reports) and all(
            isinstance(r, Report)
            and r.ok
            and any(line.startswith("one rank: the same") for line in r.established)
            for r in reports
        )

    @property
    def named(self) -> str:
        """How near the lines that the findings name are to the call: "line", "function", "see"."""
        for _, report in self.tried:
            if not isinstance(report, Report) or not report.findings:
                continue
            own = [self.site.holds(finding.line) for finding in report.findings]
            for near in ("line", "function"):
                if near in own:
                    return near
            lines = re.findall(r"[\w/.-]+\.py:\d+", "\n".join(map(str, report.findings)))
            return "see" if any(map(self.site.holds, lines)) else "elsewhere"
        return ""

    def __str__(self) -> str:
        told = "MISSED" if self.tried else "MISSED: no layout calls it"
        for case, report in self.tried:
            if isinstance(report, Report) and report.findings:
                first = report.findings[0]
                told = f"{first.code} {first.line} ({self.named}) under {case.name}"
                break
            if isinstance(report, Exception):
                told = f"ERROR under {case.name}: {str(report).splitlines()[0][:90]}"
        if told == "MISSED" and self.equivalent:
            names = ", ".join(case.name for case, _ in self.tried)
            told = f"equivalent: gradients as one process' under {names}"
        return f"{self.site!s:<42} {self.site.verb:<14} {self.seconds:5.1f} s  {told}"


def check(case: Case) -> Report:
    """Check one layout; no repair is tried out."""
    return ls.check(case.step, case.make, mesh=case.mesh, data=case.data, repair_s=0)


def judge_right(case: Case) -> Right:
    """Check a layout as it is, and note which calls it makes."""
    start = time.perf_counter()
    with noting() as called:
        report = check(case)
    return Right(case, report, time.perf_counter() - start, called)


def judge(site: Site, rights: list[Right], without: Any) -> Mutant:
    """Leave one call out of the layouts that make it, the quickest first, until one finds it."""
    start, tried = time.perf_counter(), []
    making = [right for right in rights if (site.file, site.line) in right.called]
    for right in sorted(making, key=lambda right: right.seconds)[:ROOM]:
        outcome: Report | Exception
        try:
            with without(site):
                outcome = check(right.case)
        except Exception as error:  # a step that does not run at all
            outcome = error
        tried.append((right.case, outcome))
        if isinstance(outcome, Report) and outcome.findings:
            break
    return Mutant(site, tried, time.perf_counter() - start)


@contextlib.contextmanager
def noting() -> Iterator[set[tuple[str, int]]]:
    """Note the file and the line of every typed collective that is said while something records."""
    called: set[tuple[str, int]] = set()
    original = claims.Moved

    def moved(*args: Any, **words: Any) -> Any:
        made = original(*args, **words)
        called.add((short_path(made.place.file), made.place.line))
        return made

    claims.Moved = moved  # type: ignore[misc, assignment]
    try:
        yield called
    finally:
        claims.Moved = original  # type: ignore[misc]
