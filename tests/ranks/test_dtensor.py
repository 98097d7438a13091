"""A model of DTensors is compiled as it is: bitwise as eager, one program for all ranks.

The calls are in `dtensor.py`.
"""

from __future__ import annotations

import json

import pytest

from tests.ranks.launch import Ended, Torchrun


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """The script's first start and its second, with the store that the first one left."""
    folder = tmp_path_factory.mktemp("dtensor")
    env = {"LOCKSTEP_STORE": str(folder / "store")}
    with Torchrun() as torchrun:
        starts = [
            torchrun.run("tests.ranks.dtensor", folder=folder / name, limit=600, env=env)
            for name in ("first", "second")
        ]
    for ended in starts:
        assert ended.code == 0, ended.report()
    return starts


@pytest.mark.parametrize("way", ["tensor", "sequence", "whole"])
def test_every_call_has_the_bits_of_eager(way: str, starts: list[Ended]) -> None:
    for ended in starts:
        for result in ended.results:
            assert all(map(all, result[way])), result[way]
            assert {len(call) for call in result[way]} == ({10} if way != "whole" else {11})


def test_each_program_is_one_for_both_ranks(starts: list[Ended]) -> None:
    first, second = starts
    made = {(e["step"], e["variant"], e["digest"]) for e in first.of("ready")}
    assert len(made) == 6  # each way without gradients, then with them
    assert len({digest for _, _, digest in made}) == 6
    assert {e["by"] for e in first.of("ready")} == {0}
    assert {(e["step"], e["variant"], e["digest"]) for e in second.of("ready")} == made
    assert {e["role"] for e in second.of("ready")} == {"loaded"}


def test_no_collective_is_named_by_a_rank(starts: list[Ended]) -> None:
    calls = [call for e in starts[0].of("program") for call in e["schedule"]]
    assert {call["axis"] for call in calls} == {"tp"}
    ops = {call["op"] for call in calls}
    assert ops == {"all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"}
    told = [{key: call[key] for key in call if key != "line"} for call in calls]  # tests/ranks/...
    assert not any("rank" in json.dumps(call) for call in told)


def test_what_no_program_takes_is_refused(starts: list[Ended]) -> None:
    for result in starts[0].results:
        assert "model.up.weight is a DTensor that no program takes" in result["uneven"]
        assert "got  dimension 0 of 33 in 2 parts; shape [33, 16]" in result["uneven"]
        assert "ids is a DTensor, as an argument" in result["argument"]
