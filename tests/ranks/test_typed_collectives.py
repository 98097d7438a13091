"""Typed collectives on real ranks: right on axes of 2 and 4, and captured bit by bit as eager."""

from __future__ import annotations

import pytest

from tests.ranks.launch import Ended, Torchrun
from tests.typed_cases import ROWS, UNEVEN

AXES = ("tp", "world")  # of 2 ranks, of 4
# Which axes a graph holds, and which of the operators that ask for the rank's coordinate.
STEPS = {
    "uneven_slices": (["tp"], ["own_pad", "own_slice", "own_trim"]),
    "uneven_shards": (["world"], ["own_pad", "own_slice", "own_trim"]),
    "started_first": (["dp", "tp"], ["own_slice"]),
    "claimed": (["tp"], []),
    "unclaimed": (["tp"], []),
    "splits_from_data": (["tp"], []),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    with Torchrun() as torchrun:
        folder = tmp_path_factory.mktemp("typed")
        return torchrun.run("tests.ranks.typed_steps", folder=folder, world=4, limit=200)


def test_all_ranks_came_through(ended: Ended) -> None:
    assert ended.code == 0, ended.report()


def test_every_row_is_right_on_real_ranks(ended: Ended) -> None:
    names = [f"{case.name}-{axis}" for axis in AXES for case in ROWS + UNEVEN]
    for rank, results in enumerate(ended.results):
        assert list(results["eager"]) == names
        wrong = {n: r for n, r in results["eager"].items() if not (r["forward"] and r["backward"])}
        assert wrong == {}, rank


def test_every_row_captured_is_eager_bit_by_bit_in_one_graph_for_all(ended: Ended) -> None:
    for rank, results in enumerate(ended.results):
        assert len(results["captured"]) == len(ROWS) + len(STEPS)
        for name, row in results["captured"].items():
            assert row["equal"] and row["same"], (rank, name, row)


def test_graphs_hold_collectives_by_axis_and_the_rank_in_operators_alone(ended: Ended) -> None:
    captured = ended.results[0]["captured"]
    assert {name: (captured[name]["axes"], captured[name]["own"]) for name in STEPS} == STEPS


def test_a_collective_of_the_backward_is_charged_to_its_call(
    ended: Ended,
) -> None:
    for name, row in ended.results[0]["captured"].items():
        file = "tests/ranks/typed_steps.py" if name in STEPS else "tests/typed_cases.py"
        assert row["lines"] in ([file], []), name


def test_claims_leave_no_node(ended: Ended) -> None:
    captured = ended.results[0]["captured"]
    assert captured["claimed"]["text"] == captured["unclaimed"]["text"]
