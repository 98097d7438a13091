"""A size outside of a declared range, or a broken guard, on real ranks: the same end for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.launch import Ended, Torchrun


@pytest.fixture(scope="module")
def torchrun() -> Torchrun:  # type: ignore[misc]
    with Torchrun() as torchrun:
        yield torchrun


def run(torchrun: Torchrun, folder: Path, how: str) -> Ended:
    return torchrun.run("tests.ranks.sizes", how, folder=folder, limit=90)


def test_where_all_ranks_are_outside_each_says_how_to_widen(tmp_path, torchrun):
    ended = run(torchrun, tmp_path, "all outside")
    assert ended.code != 0
    assert all(rows == [26, 84] for rows in ended.results)
    for text in ended.texts:
        assert "LS300: total: a size is outside of what dynamic= says" in text, ended.report()
        assert "fix  dynamic={" in text
    assert len(ended.of("ready", role="built")) == 1


def test_where_one_rank_is_outside_all_are_told(tmp_path, torchrun):
    ended = run(torchrun, tmp_path, "one outside")
    assert ended.code != 0
    for text in ended.texts:
        assert "got  x.shape[0] = 70" in text, ended.report()
        assert 'fix  dynamic={"x": {0: (2, 70)}}' in text
    told = "rank 1 failed while looking at the sizes of total, call 3"
    assert told in ended.texts[0]


def test_where_one_rank_breaks_a_guard_all_are_told(tmp_path, torchrun):
    ended = run(torchrun, tmp_path, "a guard")
    assert ended.code != 0
    for text in ended.texts:
        assert "got  x.shape[0] = 41" in text, ended.report()
        assert "want x.shape[0] <= 40" in text
        assert "at   tests/ranks/sizes.py:" in text


def test_what_all_ranks_meet_is_built_by_their_vote(tmp_path, torchrun):
    ended = run(torchrun, tmp_path, "built")
    assert ended.code == 0, ended.report()
    assert ended.results == [[26, 390, 18, 390, 246]] * 2
    assert len(ended.of("ready", role="built")) == len(ended.of("ready", role="loaded")) == 3
