"""What a capture could lose in silence is kept, and a capture that loses it is found."""

from __future__ import annotations

import pytest

from tests.faithful.__main__ import holds, merged, verdict
from tests.faithful.ranks import AFTER, REFUSED, RIGHT, WRONG
from tests.ranks.launch import Ended, Torchrun


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    with Torchrun() as torchrun:
        return torchrun.run("tests.ranks.faithful", folder=tmp_path_factory.mktemp("kept"))


def test_attributes_reductions_and_caches_are_kept(ended: Ended) -> None:
    assert ended.code == 0, ended.report()
    for rows in ended.results:
        assert [became for _, became in rows[:4]] == [RIGHT] * 4


def test_a_capture_that_loses_an_attribute_or_a_hook_is_found(ended: Ended) -> None:
    for rows in ended.results:
        assert rows[4:] == [["lost", WRONG], ["hidden", WRONG]]


def test_the_worse_rank_counts_and_a_refusal_needs_its_line() -> None:
    rows = merged([[["a", RIGHT, ""], ["b", RIGHT, ""]], [["a", AFTER, ""], ["b", REFUSED, ""]]])
    assert rows == [["a", AFTER, ""], ["b", REFUSED, ""]]
    assert not any(map(holds, rows))
    assert holds(["c", REFUSED, "cases.py:3"]) and holds(["d", RIGHT, ""])
    assert verdict(rows).startswith("2 cases: 1 WRONG AFTER, 1 refused; 2 wrong")
