"""Right programs are silent and typed, their wrong twins found: some rows of `tests.silent`."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from lockstep.checker.finding import Finding, Report
from tests.silent.__main__ import _figures
from tests.silent.judged import Row, judge
from tests.silent.programs import PROGRAMS

SOME = ["Llama, tp with sp", "mixture of experts, uneven splits"]


@pytest.mark.parametrize("name", SOME)
def test_a_right_program_is_silent_and_its_wrong_twin_found(name: str):
    (program,) = [program for program in PROGRAMS if program.name == name]
    row = judge(program)
    assert row.silent, str(row.right)
    assert (row.unknown, row.right.undecided) == (0, [])
    assert row.found, str(row.wrong)


def _row() -> Row:
    right = Report(nodes=100, established=["one rank: the same numbers for the loss"])
    line = PROGRAMS[0].line
    wrong = Report([Finding("LS514", "a gradient is partial", line="a.py:3", source=line)])
    return Row(PROGRAMS[0], right, wrong, 1.0)


def test_a_row_holds_only_where_all_of_it_does():
    row = _row()
    assert row.holds and "LS514 a.py:3" in str(row)
    alarm = dataclasses.replace(row.right, findings=row.wrong.findings)
    alone = dataclasses.replace(row.right, established=[])
    unknown = dataclasses.replace(row.right, untyped=Counter({"fft": 3}))
    other = dataclasses.replace(row.wrong.findings[0], source="x = y")
    elsewhere = Report([other])
    wrong = [
        (dataclasses.replace(row, right=alarm), "ALARM"),
        (dataclasses.replace(row, right=alone), "ALARM"),
        (dataclasses.replace(row, right=unknown), "3.0 %"),
        (dataclasses.replace(row, wrong=elsewhere), "ELSEWHERE"),
        (dataclasses.replace(row, wrong=Report()), "MISSED"),
    ]
    for bad, told in wrong:
        assert not bad.holds and told in str(bad)
        assert _figures([row, bad]) == 1
    assert _figures([row]) == 0 and _figures([]) == 1
