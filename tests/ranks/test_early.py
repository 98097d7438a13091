"""Ints that were read of the rank before the step are read by each rank as its program runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.launch import Torchrun

SOURCE = (Path(__file__).parent / "early.py").read_text().splitlines()


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as launcher:
        yield launcher


@pytest.mark.parametrize(("backend", "world"), [("graph", 2), ("inductor", 3)])
def test_a_window_of_each_rank(
    torchrun: Torchrun, tmp_path: Path, backend: str, world: int
) -> None:
    ended = torchrun.run("tests.ranks.early", "window", backend, folder=tmp_path, world=world)
    assert ended.code == 0, ended.report()
    assert [result["equal"] for result in ended.results] == [[True] * 4] * world
    told = sorted(ended.results[0]["early"])
    assert told == [
        ["model.bounds[0][0] = 2*dp", "model.bounds[0][1] = 2*dp + 2", "model.start = 2*dp"],
        [
            "model.bounds[0][0] = 2*dp + 3",
            "model.bounds[0][1] = 2*dp + 5",
            "model.start = 2*dp + 3",
        ],
    ]
    again = torchrun.run("tests.ranks.early", "window", backend, folder=tmp_path, world=world)
    assert again.code == 0 and len(again.of("built")) == 2 == len(ended.of("built"))
    assert len(again.of("viewed")) == 2, "a hit captures nothing"
