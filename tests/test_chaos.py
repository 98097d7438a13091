"""A few cells of the chaos matrix on real ranks; and that its judge sees what does not hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.chaos.__main__ import coverage
from tests.chaos.cells import ACTIONS, PHASES, TARGETS, Cell, matrix, specials
from tests.chaos.judge import faults, named, outcome
from tests.chaos.launch import Seen, pool, run

FEW = [
    Cell("builder", "write", "KILL"),
    Cell("waiter", "lowering", "exception"),
    Cell("store", "capture", "STOP"),
    Cell("two jobs", "rename", "STOP"),
]


@pytest.mark.timeout(600)
def test_a_few_cells_hold_on_real_ranks(tmp_path: Path) -> None:
    with pool() as running:
        started = {cell: running.submit(run, cell, tmp_path / str(cell)) for cell in FEW}
        seen = {cell: one.result() for cell, one in started.items()}
    for cell, one in seen.items():
        assert faults(cell, one) == [], f"{cell}: {outcome(one)}\n{one.texts}\n{one.agents}"
    taken = [row["rank"] for row in seen[FEW[-1]].events if row["event"] == "takeover"]
    assert taken == [1]


def test_the_matrix_has_each_combination_once() -> None:
    cells = matrix()
    assert len(cells) == len(set(cells)) == len(TARGETS) * len(PHASES) * len(ACTIONS) == 96
    assert len({str(cell) for cell in [*cells, *specials()]}) == 96 + len(specials())
    assert all(8 < cell.limit_s() < 30 for cell in cells)


LS400 = "[lockstep rank 0] LS400: rank 2: no sign of life for 5 s, seen by rank 1"
GOOD = Seen(
    struck=True, ends=dict.fromkeys(range(4), 6.0), texts={0: LS400, 1: LS400, 2: "", 3: ""},
    by_agent={3}, files={"store0/a.lockstep": None},
)  # fmt: skip
KILLED = Cell("builder", "write", "KILL")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, None),
        ({"ends": dict.fromkeys(range(4), 30.0)}, "process [0, 1, 2, 3] was still there"),
        ({"struck": False}, "never came to the strike"),
        ({"ends": {0: 1.0, 2: 1.0, 3: 1.0}}, "process [1] was still there"),
        ({"files": {"store0/a.lockstep": "LS210: torn"}}, "bad file store0/a.lockstep: LS210"),
        ({"by_agent": set()}, "process 3 ended without the culprit's name"),
        ({"texts": {0: LS400, 1: LS400.replace("rank 2:", "rank 3:")}}, "process 1 ended without"),
    ],
)
def test_what_does_not_hold_is_seen(change: dict, told: str | None) -> None:
    found = faults(KILLED, dataclasses.replace(GOOD, **change))
    assert found == [] if told is None else any(told in one for one in found)


def test_a_store_is_named_with_its_host_and_the_other_job_must_train() -> None:
    cell = Cell("store", "load", "KILL")
    gone = "LS400: the rendezvous store at 127.0.0.1:29500 is gone: node 0's torchrun agent"
    seen = dataclasses.replace(GOOD, by_agent=set(), texts=dict.fromkeys(range(4), gone))
    assert faults(cell, seen) == []
    blank = dict.fromkeys(range(4), gone.replace(" at 127.0.0.1:29500", ""))
    assert len(faults(cell, dataclasses.replace(seen, texts=blank))) == 4
    other = Cell("two jobs", "load", "KILL")
    alone = dataclasses.replace(GOOD, by_agent={1}, texts={}, trained={2})
    assert "the other job did not train" in faults(other, alone)
    assert faults(other, dataclasses.replace(alone, trained={2, 3})) == []


def test_special_cases_are_judged_by_what_they_are_about() -> None:
    well = dataclasses.replace(GOOD, by_agent=set(), trained={0, 1, 2, 3}, texts={})
    assert faults(Cell(special="all well"), well) == []
    assert faults(Cell(special="half-warm store"), well) == ["not so: half-warm store"]
    assert faults(Cell(special="slow rank"), well) == ["not so: slow rank"]
    three = dataclasses.replace(well, trained={0, 1, 2}, by_agent={3})
    assert faults(Cell(special="all well"), three) == ["only [0, 1, 2] trained"]


def test_the_first_error_of_ours_tells_who_is_named() -> None:
    text = "LS400: ranks 2, 3: no sign of life\nLS400: rank 0 failed"
    assert named(text) == {2, 3} and named("ValueError: rank 2") == set()
    assert named("LS400: gave up: rank 1 waits 6 s for rank 0 to build it") == {0, 1}


def test_the_table_has_a_row_for_each_phase() -> None:
    rows = {KILLED: GOOD}
    assert outcome(GOOD) == "ea 6.0"
    assert coverage(rows).row_count == len(PHASES)
