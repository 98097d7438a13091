"""Passes on real ranks: with them a step leaves the bits that it leaves without."""

from __future__ import annotations

from pathlib import Path

from tests.ranks.launch import Torchrun

OPS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def test_two_ranks_get_equal_bits_from_fewer_collectives(tmp_path: Path) -> None:
    with Torchrun() as torchrun:
        ended = torchrun.run("tests.ranks.passes", folder=tmp_path, limit=180)
    assert ended.code == 0, ended.report()
    assert ended.results == [[40, 40]] * 2
    schedules = {event["step"]: event["schedule"] for event in ended.of("program")}
    plain, passed = ([item["op"] for item in rows] for rows in schedules.values())
    assert [plain.count(op) for op in OPS] == [8, 5, 5]
    assert [passed.count(op) for op in OPS] == [4, 4, 4]
