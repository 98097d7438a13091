"""The judge of stale programs, in small; and that it would see a walk that forgets something."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.capture import parts
from tests.staleness.__main__ import PROGRAMS, report
from tests.staleness.environment import CHANGES, SAME, library
from tests.staleness.mutate import Mutant, mutants
from tests.staleness.results import MUST_HIT, Outcome, judge_changes, judge_mutants

MODEL = PROGRAMS[0]


@pytest.fixture(scope="module", autouse=True)
def with_library() -> Iterator[None]:
    with library("1.5"):
        yield


def in_a_table(mutant: Mutant) -> bool:
    """Of a function that nothing but two tables hold."""
    return mutant.where == "twice" and mutant.kind in ("default", "operator")


def judged() -> list[tuple[str, str]]:
    return [(row.change, row.became) for row in judge_mutants(MODEL, in_a_table)]


def test_what_only_a_table_holds_is_reached() -> None:
    found = [became for _, became in judged()]
    assert found == ["missed", "missed"]


def test_a_walk_that_forgets_tables_is_seen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "items_of", lambda value: iter(()))
    rows = list(judge_mutants(MODEL, in_a_table))
    assert {row.became for row in rows} == {"wrongly hit"}
    assert report(rows) == 1
    assert "WRONGLY HIT default: model.py:" in capsys.readouterr().out


def test_the_environment_counts_and_the_rank_does_not() -> None:
    names = ("deterministic algorithms", "another order of axes", "a hook of every module")
    around = [change for change in CHANGES if change.name in names]
    same = [change for change in SAME if change.name in ("rank", "HOME")]
    found = {row.change: row.became for row in judge_changes(MODEL, [*around, *same])}
    assert found == {
        "deterministic algorithms": "missed in vain",
        "another order of axes": "missed in vain",
        "a hook of every module": "missed",
        "rank": "hit",
        "HOME": "hit",
    }


def test_there_are_enough_of_them() -> None:
    made = [
        m for one in PROGRAMS for name, text in one.sources().items() for m in mutants(name, text)
    ]
    assert len(made) >= 200 and len(CHANGES) >= 20
    kinds = {"literal", "operator", "default", "attribute", "decorator"}
    assert kinds <= {mutant.kind for mutant in made}


def test_each_piece_of_a_text_is_changed_once() -> None:
    text = '"""Doc."""\nX = {"a": 1.0, "b": 2.0}\n\ndef f(x, n=1):\n    return x.relu() + n\n'
    found = [(m.kind, m.where, m.told) for m in mutants("m", text)]
    assert sorted(found) == sorted(
        [
            ("order", "", "{'a': 1.0, 'b': 2.0} -> {'b': 2.0, 'a': 1.0}"),
            ("default", "f", "1 -> 2"),
            ("literal", "", "'a' -> 'a_'"),
            ("literal", "", "'b' -> 'b_'"),
            ("literal", "", "1.0 -> 1.625"),
            ("literal", "", "2.0 -> 3.125"),
            ("operator", "f", "x.relu() + n -> x.relu() - n"),
            ("attribute", "f", "x.relu -> x.tanh"),
        ]
    )


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (Outcome("a", "literal", "missed", ("f",)), 0),
        (Outcome("a", "literal", "missed in vain", ("f",), "message text"), 0),
        (Outcome("a", "literal", "missed in vain", ("f",), "other"), 1),
        (Outcome("a", "same", "missed in vain", ("f",), MUST_HIT), 1),
        (Outcome("a", "literal", "wrongly hit"), 1),
        (Outcome("a", "environment", "hit"), 1),
        (Outcome("a", "environment", "failed"), 1),
    ],
)
def test_the_exit_code_says_whether_it_holds(row: Outcome, code: int) -> None:
    assert report([row]) == code
    assert report([]) == 1
