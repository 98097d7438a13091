"""Layouts on two real ranks: the captured step bitwise as eager, and both as one process."""

from __future__ import annotations

import pytest

from tests.ranks.launch import Ended, Torchrun

LAYOUTS = ("fsdp2", "tp2+sp", "cp2", "experts, ep2")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("parallel")
    with Torchrun() as torchrun:
        ended = torchrun.run(
            "tests.bitwise.layout_ranks",
            "quick",
            *LAYOUTS,
            folder=folder,
            limit=200,
            env={"CACHES": str(folder)},
        )
    assert ended.code == 0, ended.report()
    return ended


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_trains_as_eager_and_as_one_process(ended: Ended, name: str) -> None:
    for rows in ended.results:
        mine = [row for row in rows if row["case"] == name]
        assert [row["claim"] for row in mine] == ["graph = eager", "as one process"]
        assert [row["odd"] for row in mine] == [None, None]
        assert mine[0]["values"] > 1000


def test_each_layout_is_one_program_that_one_rank_built(ended: Ended) -> None:
    ready = ended.of("ready")
    assert len(ready) == 2 * len(LAYOUTS)
    assert len({event["digest"] for event in ready}) == len(LAYOUTS)
    assert [event["role"] for event in ready].count("built") == len(LAYOUTS)
