"""Collectives captured under their axis' name give what eager gives, on real ranks."""

from __future__ import annotations

import pytest

from tests.ranks.launch import Ended, Torchrun

AXES = {
    "all_reduce": ["tp", "dp", "world"],
    "all_reduce_async": ["tp"],
    "broadcast": ["tp", "world"],
    "all_gather": ["tp", "dp"],
    "reduce_scatter": ["tp", "dp"],
    "all_to_all": ["tp", "dp", "tp"],
    "of_scalars": ["dp", "tp", "tp"],
    "functional_ones": ["tp", "tp", "dp"],
    "with_gradients": ["tp", "tp"],
    "in_a_custom_backward": ["tp"],
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    with Torchrun() as torchrun:
        folder = tmp_path_factory.mktemp("collectives")
        return torchrun.run("tests.ranks.collective_steps", folder=folder, world=4, limit=150)


def test_all_ranks_came_through(ended: Ended) -> None:
    assert ended.code == 0, ended.report()


@pytest.mark.parametrize("step", list(AXES))
def test_compiled_is_eager_bit_by_bit_under_axis_names(ended: Ended, step: str) -> None:
    for rank, results in enumerate(ended.results):
        assert results[step]["equal"], (rank, results[step])
        assert results[step]["axes"] == AXES[step]
        assert set(results[step]["lines"]) == {"tests/ranks/collective_steps.py"}


def test_the_graphs_are_the_same_text_on_all_ranks(ended: Ended) -> None:
    for step in AXES:
        assert len({results[step]["text"] for results in ended.results}) == 1, step


def test_a_collective_of_the_backward_says_so(ended: Ended) -> None:
    assert ended.results[0]["in_a_custom_backward"]["phases"] == ["backward"]
    assert ended.results[0]["with_gradients"]["phases"] == ["forward", "backward"]
