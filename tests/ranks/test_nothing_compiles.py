"""A loading rank traces, lowers and compiles nothing; and the check of it can fail."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.nothing_compiles import jobs, problems
from tests.ranks.launch import Ended


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Ended]]:
    return jobs(tmp_path_factory.mktemp("quiet"))


def test_restarts_are_quiet(ended: list[tuple[str, Ended]], tmp_path: Path) -> None:
    assert problems(ended, []) == []


def test_each_figure_would_be_seen(ended: list[tuple[str, Ended]]) -> None:
    assert problems(ended, ["g++ -v"]) == ["a compiler was started: g++ -v"]
    for field in ("traces", "frames", "lowerings", "builds", "processes"):
        loud = copy.deepcopy(ended)
        loud[1][1].results[1]["counts"][field] = 1
        assert len(problems(loud, [])) == 1
    other = copy.deepcopy(ended)
    other[3][1].results[0]["inductor modules"] = 5
    other[2][1].results[0]["bound"] = []
    assert len(problems(other, [])) == 2
