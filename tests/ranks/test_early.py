"""Ints that were read of the rank before the step are read by each rank as its program runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.fleet.ship import digest_of
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


@pytest.mark.parametrize("backend", ["graph", "inductor"])
def test_a_vocabulary_whose_constructor_reads_the_rank(
    torchrun: Torchrun, tmp_path: Path, backend: str
) -> None:
    """Bitwise as eager, or as each rank's own compile of its own number; the check sees it too."""
    ended = torchrun.run("tests.ranks.early", "words", backend, folder=tmp_path, world=4, limit=300)
    assert ended.code == 0, ended.report()
    assert all(all(result["equal"]) for result in ended.results), ended.results
    digests = [event["digest"] for event in ended.of("ready", step="vocabulary")]
    assert len(digests) == 4 and len(set(digests)) == 1
    assert len(ended.of("built")) == 1


def marked(name: str) -> str:
    first = next(i for i, line in enumerate(SOURCE) if line.startswith(f"class {name}("))
    number = next(i for i in range(first, len(SOURCE)) if "# the line" in SOURCE[i]) + 1
    return f"tests/ranks/early.py:{number}"


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        (
            "middle",
            [
                "model.start differs between the ranks of train",
                "got  model.start: 0 on ranks 0, 2; 4 on rank 1",
                f"at   {marked('Middle')}",
            ],
        ),
        ("branch", ["the step branches on its rank: dp == 0", f"at   {marked('Branch')}"]),
        (
            "mixed",
            [
                "ranks 1, 2 differ in module model.scale at train",
                f"at   {marked('Mixed')}",
                "0x1.0000000000000p+1 on rank 1",
            ],
        ),
    ],
)
def test_refused_on_every_rank(
    torchrun: Torchrun, tmp_path: Path, name: str, texts: list[str]
) -> None:
    ended = torchrun.run("tests.ranks.early", name, "graph", folder=tmp_path, world=3)
    assert ended.code == 1 and not list(tmp_path.glob("store/*.lockstep")), ended.report()
    for printed in ended.texts:
        for text in texts:
            assert text in printed, f"{text!r} is missing\n{ended.report()}"


def test_a_pinned_artifact_is_known_before_the_ranks_have_met(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = torchrun.run("tests.ranks.early", "window", "graph", folder=tmp_path, world=2)
    assert ended.code == 0, ended.report()
    first = ended.of("built")[0]["digest"]
    (path,) = [p for p in tmp_path.glob("store/*.lockstep") if digest_of(p.read_bytes()) == first]
    pinned = {"LOCKSTEP_STORE": str(path)}
    again = torchrun.run("tests.ranks.early", "once", "graph", folder=tmp_path, env=pinned)
    assert again.code == 0, again.report()
    assert len(again.of("built")) == 2, "by the first run alone"
