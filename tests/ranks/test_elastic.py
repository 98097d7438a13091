"""Starts with other numbers of ranks find or build the right artifact; a restart finds its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.build.artifact import read_manifest
from tests.ranks.launch import Ended, Torchrun

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as running:
        yield running


def by(ended: Ended) -> list[tuple[str, int | None]]:
    """By rank: how it came by its program, and who built that in this start."""
    rows = sorted(ended.of("ready"), key=lambda row: row["rank"])
    return [(row["role"], row["by"]) for row in rows]


def test_artifacts_of_several_meshes_lie_side_by_side(torchrun: Torchrun, tmp_path: Path) -> None:
    store = tmp_path / "store"
    starts = []
    for number, world in enumerate((4, 2, 4)):
        env = {"LOCKSTEP_STORE": str(store)}
        starts.append(
            torchrun.run(
                "tests.ranks.elastic", "plain", folder=tmp_path / str(number), world=world, env=env,
            )
        )  # fmt: skip
        assert starts[-1].code == 0, starts[-1].report()
    first, other, again = starts
    assert by(first) == [("built", 0)] + 3 * [("loaded", 0)]
    assert by(other) == [("built", 0), ("loaded", 0)]  # never the one of another mesh
    assert by(again) == 4 * [("loaded", None)] and first.results == again.results
    meshes = [read_manifest(path)["fingerprint"]["mesh dp"] for path in store.glob("*.lockstep")]
    assert sorted(meshes) == [2, 4]


def test_a_restart_finds_what_was_built_when_the_builder_was_lost(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    ended = torchrun.run(
        "tests.ranks.elastic",
        "takeover",
        folder=tmp_path,
        options=("--max-restarts", "1"),
        env={"LOCKSTEP_TIMING": "beat=0.1,lease=1.5,dead=4,grace=2,ack=1,cause=0.6,say=1"},
    )
    assert ended.code == 0, ended.report()
    assert [row["rank"] for row in ended.of("takeover")] == [1]
    assert [row["rank"] for row in ended.of("built")] == [1]
    assert {row["culprit"] for row in ended.of("fault_seen")} == {0}
    # The first start's fault is not the second one's, though the store and its keys outlive it.
    assert [row["restart"] for row in ended.results] == [1, 1]
    assert by(ended) == 2 * [("loaded", None)]
