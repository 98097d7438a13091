"""One case, wrong and right, under the checker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lockstep.checker.finding import Finding
from tests.faults.expected import wanted


@dataclass
class Outcome:
    """What the checker said of a case.

    Args:
        wrong: the findings of the wrong program; `right` of its right twin.
        error: why it could not be checked, if it could not.
    """

    name: str
    wrong: list[Finding] = field(default_factory=list)
    right: list[Finding] = field(default_factory=list)
    unknown: int = 0
    error: str = ""
    seconds: float = 0.0

    @property
    def flagged(self) -> bool:
        return bool(self.wrong) and not self.error

    @property
    def silent(self) -> bool:
        return not self.right and not self.error

    @property
    def few(self) -> bool:
        return len(self.wrong) <= 2

    @property
    def placed(self) -> bool | None:
        """Whether a finding names the line and axis that are asked for; None if none are."""
        said = wanted(self.name)
        if said is None:
            return None
        axis, lines = said
        return any(f.axis in (axis, None) and _number(f.line) in lines for f in self.wrong)

    @property
    def fix(self) -> Finding | None:
        """The finding with a verified fix, if there is one."""
        return next((f for f in self.wrong if f.verified), None)


def _number(line: str) -> int:
    number = line.rpartition(":")[2]
    return int(number) if number.isdigit() else -1


def judge(case: Any, adapter: Any) -> Outcome:
    """Check a case's wrong program and its right twin."""
    from lockstep.checker.check import check

    outcome, start = Outcome(Path(case.__file__).stem), time.perf_counter()
    try:
        with _float64():
            for fault in (True, False):
                step, make = adapter.program(case, fault)
                report = check(step, make, mesh=case.MESH)
                (outcome.wrong if fault else outcome.right).extend(report.findings)
                outcome.unknown += sum(report.unknown_ops.values())
    except Exception as error:
        outcome.error = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    outcome.seconds = time.perf_counter() - start
    return outcome


class _float64:
    """The default dtype that the cases are written for, while inside."""

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(self._before)
