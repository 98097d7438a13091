"""Collectives in another order on one rank are named with both lines."""

from __future__ import annotations

import torch
import torch.distributed as dist

import lockstep as ls
from lockstep.checker import order
from lockstep.checker.world import capture_world
from tests.checker_cases import CASES


def judge(step, make, mesh):
    return order.judge(capture_world(step, make, mesh))


def test_the_right_order_is_silent():
    for make_step, make, mesh, _ in CASES.values():
        assert judge(make_step(""), make, mesh) == []


def test_equal_shapes_in_another_order_are_told_apart_by_what_they_are_computed_from():
    make_step, make, mesh, _ = CASES["order"]
    (finding,) = judge(make_step("swapped"), make, mesh)
    assert finding.code == "LS510" and finding.axis == "tp"
    assert finding.what == "collective 1 on tp is not the same on ranks 0 and 1"
    assert "computed from m.a" in finding.got and "computed from m.b" in finding.got
    assert finding.source.startswith("sums = {name: reduce_out(")


def _missing(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if dist.get_rank() == 0:
        dist.all_reduce(y)
    return y


def test_a_missing_call_is_named_with_its_rank():
    (finding,) = judge(_missing, lambda mesh: torch.ones(3), {"dp": 2})
    assert finding.got.splitlines()[1] == "rank 1: no further collective"
    assert "for ever" in finding.why and finding.source == "dist.all_reduce(y)"


def _other_shape(x: torch.Tensor) -> torch.Tensor:
    y = x[: 2 - dist.get_rank()].clone()
    dist.all_reduce(y)
    return y


def test_another_shape_is_found():
    (finding,) = judge(_other_shape, lambda mesh: torch.ones(3), {"dp": 2})
    assert "f32[2]" in finding.got and "f32[1]" in finding.got


def _exchange(sent: list[list[int]], got: list[list[int]]) -> list[order.Finding]:
    """Judge an all-to-all in which rank r sends and gets these rows."""

    def step(x: torch.Tensor) -> torch.Tensor:
        here = dist.get_rank()
        splits = {"input_splits": sent[here], "output_splits": got[here]}
        return ls.all_to_all(x, "ep", src=ls.V, dst=ls.V, **splits)

    def make(mesh: object) -> torch.Tensor:
        return torch.ones(sum(sent[dist.get_rank()]), 3)

    return judge(step, make, {"ep": len(sent)})


def test_an_uneven_exchange_is_right_where_each_rank_gets_what_is_sent():
    assert _exchange([[1, 2], [3, 4]], [[1, 3], [2, 4]]) == []
    assert _exchange([[1, 2, 1]] * 3, [[1] * 3, [2] * 3, [1] * 3]) == []


def test_an_exchange_in_which_ranks_expect_other_rows_is_found():
    (finding,) = _exchange([[1, 2], [3, 4]], [[1, 2], [3, 4]])
    assert finding.code == "LS510" and finding.axis == "ep"
    (finding,) = _exchange([[1, 2, 1]] * 3, [[1] * 3, [2, 2, 1], [1, 2, 1]])
    assert finding.what.endswith("ranks 1 and 2")
