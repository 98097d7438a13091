"""The flagship scene: the forgotten conversion is found at its line, and the pasted fix passes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lockstep.checker.finding import Report
from tests.flagship import block, scene


@pytest.fixture(scope="module")
def found() -> Report:
    return scene.check(block, sequence_parallel=True)


def test_the_scene_holds(found: Report, tmp_path: Path):
    before = scene.check(block, sequence_parallel=False)
    with scene.with_pasted(found.findings[0], tmp_path) as pasted:
        mended = scene.check(pasted, sequence_parallel=True, repair_s=0)
        four = scene.check(pasted, sequence_parallel=True, ranks=4, repair_s=0)
    assert four.ok, str(four)
    rows = scene.rows(found, mended, before)
    assert [what for what, held in rows if not held] == []


def test_a_scene_that_does_not_hold_is_told(found: Report):
    """The block itself in place of the mended one, and a finding that names another line."""
    other = dataclasses.replace(found.findings[0], line="tests/flagship/block.py:1")
    rows = scene.rows(dataclasses.replace(found, findings=[other]), found, found)
    told = [what.partition(":")[0] for what, held in rows if not held]
    assert told == [
        "before",
        "it names the line of the norm's weight",
        "pasted into the source",
        "and every gradient is the derivative",
    ]
