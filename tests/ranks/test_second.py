"""A rank that does not build captures the step too; the builder compares before it publishes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.launch import Ended, Torchrun

SOURCE = (Path(__file__).parent / "second.py").read_text().splitlines()


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as launcher:
        yield launcher


def marked(name: str) -> str:
    first = next(i for i, line in enumerate(SOURCE) if line.startswith(f"def {name}("))
    return f"tests/ranks/second.py:{next(i for i in range(first, 99) if 'line' in SOURCE[i]) + 1}"


def refused(torchrun: Torchrun, name: str, folder: Path, *texts: str) -> Ended:
    ended = torchrun.run("tests.ranks.second", name, folder=folder)
    assert ended.code == 1 and not list(folder.glob("store/*.lockstep")), ended.report()
    for printed in ended.texts:
        for text in texts:
            assert text in printed, f"{text!r} is missing\n{ended.report()}"
    return ended


def test_the_certificate_is_in_the_manifest(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = torchrun.run("tests.ranks.second", "reads_inside", folder=tmp_path, world=3)
    assert ended.code == 0, ended.report()
    assert [result["value"] for result in ended.results] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    compared = ended.results[0]["compared"]
    assert compared["ranks"] == [0, 2] and len(compared["digest"]) == 64
    assert ended.results[1]["shown"] == [
        f"  compared  the graphs of ranks 0 and 2 are the same: {compared['rows']} rows"
    ]
    assert [event["rank"] for event in ended.of("viewed")] == [2]
    again = torchrun.run("tests.ranks.second", "reads_inside", folder=tmp_path, world=3)
    assert again.code == 0 and len(again.of("viewed")) == 1, "a hit captures nothing"


def test_a_number_that_was_read_before(torchrun: Torchrun, tmp_path: Path) -> None:
    refused(
        torchrun,
        "offset",
        tmp_path,
        "LS100: ranks 0 and 1 capture different graphs",
        marked("offset"),
        "rank 0: %1 = aten.slice.Tensor(x, 0, 0, 2) -> float32[2]",
        "rank 1: %1 = aten.slice.Tensor(x, 0, 2, 4) -> float32[2]",
        "read the rank inside the step: dist.get_rank()",
    )


def test_a_role_of_one_rank(torchrun: Torchrun, tmp_path: Path) -> None:
    refused(
        torchrun, "role", tmp_path, "ranks 0 and 1 capture different graphs", "rows on rank 0, "
    )


def test_a_rank_that_cannot_capture_it(torchrun: Torchrun, tmp_path: Path) -> None:
    refused(
        torchrun,
        "fails",
        tmp_path,
        "LS100: rank 0 captured the step, and rank 1 could not",
        "ValueError: rank 1 alone",
    )
