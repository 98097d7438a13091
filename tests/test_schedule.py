"""Pipeline tables: every message meets its own, none waits for ever, few activations live."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest

from lockstep.errors import UsageError
from lockstep.parallel.schedule import Do, interleaved, one_f_one_b

Tables = list[list[Do]]


def walk(tables: Tables) -> list[int]:
    """Run all stages as ranks would; gives how many activations each held at most."""
    stages = len(tables)
    at, held, most = [0] * stages, [0] * stages, [0] * stages
    under_way: dict[tuple[int, int, int], deque[tuple[int, int]]] = defaultdict(deque)
    there: set[tuple[str, int, int]] = set()

    def go(stage: int, row: Do) -> bool:
        other = (stage + row.place) % stages
        if row.what == "send":
            under_way[stage, other, row.place].append((row.part + row.place, row.batch))
        elif row.what == "recv":
            found = under_way[other, stage, -row.place]
            if not found:
                return False
            assert found.popleft() == (row.part, row.batch)
        elif row.what == "forward":
            there.add(("forward", row.part, row.batch))
            held[stage] += 1
            most[stage] = max(most[stage], held[stage])
        else:
            assert ("forward", row.part, row.batch) in there
            there.add(("backward", row.part, row.batch))
            held[stage] -= 1
        return True

    moved = True
    while moved:
        moved = False
        for stage, rows in enumerate(tables):
            while at[stage] < len(rows) and go(stage, rows[at[stage]]):
                at[stage] += 1
                moved = True
    assert at == [len(rows) for rows in tables], "the stages wait for each other"
    assert not any(under_way.values())
    return most


def computed(tables: Tables) -> list[tuple[str, int, int]]:
    rows = [(row.what, row.part, row.batch) for rows in tables for row in rows]
    return sorted(row for row in rows if row[0] in ("forward", "backward"))


@pytest.mark.parametrize("stages", range(1, 6))
@pytest.mark.parametrize("batches", [1, 2, 5, 8])
def test_1f1b_computes_all_and_holds_no_more_than_the_stages_ahead(stages: int, batches: int):
    tables = one_f_one_b(stages, batches)
    assert walk(tables) == [min(batches, stages - stage) for stage in range(stages)]
    every = [(w, p, b) for w in ("backward", "forward") for p in range(stages)
             for b in range(batches)]  # fmt: skip
    assert computed(tables) == every


@pytest.mark.parametrize("stages", range(1, 5))
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaved_stages_go_on_to_the_end(stages: int, rounds: int, chunks: int):
    tables = interleaved(stages, stages * rounds, chunks)
    walk(tables)
    assert len(computed(tables)) == 2 * stages * chunks * stages * rounds
    for stage, rows in enumerate(tables):
        assert {row.part % stages for row in rows} == {stage}


def test_a_wrong_table_is_found():
    first, second = one_f_one_b(2, 2)
    with pytest.raises(AssertionError, match="wait for each other"):
        walk([[row for row in first if row.what != "send"], second])
    sends = [at for at, row in enumerate(first) if row.what == "send"]
    swapped = list(first)
    swapped[sends[0]], swapped[sends[1]] = first[sends[1]], first[sends[0]]
    with pytest.raises(AssertionError):
        walk([swapped, second])


@pytest.mark.parametrize(
    ("numbers", "told"),
    [((2, 3, 2), "2 stages do not divide 3 micro-batches"), ((0, 1, 1), "a pipeline of nothing")],
)
def test_what_makes_no_table_is_refused(numbers: tuple[int, int, int], told: str):
    with pytest.raises(UsageError, match=told):
        interleaved(*numbers)
    assert len(interleaved(2, 3, 1)) == 2
