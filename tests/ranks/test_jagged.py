"""Samples with other numbers of items on every rank and at every step: one artifact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.launch import Ended, Torchrun
from tests.uneven import JAGGED_BARS


@pytest.fixture(scope="module", params=list(JAGGED_BARS))
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder: Path = tmp_path_factory.mktemp(f"jagged_{request.param}")
    with Torchrun() as torchrun:
        ended = torchrun.run("tests.ranks.jagged", request.param, folder=folder, limit=240)
    assert ended.code == 0, ended.report()
    return ended


def test_the_sizes_differ_by_rank_and_step(ended: Ended) -> None:
    one, other = (found["sizes"] for found in ended.results)
    assert len(one) == len(other) == 50
    assert one != other
    assert min(len(set(one)), len(set(other))) > 25


def test_loss_and_gradients_are_those_of_eager(ended: Ended) -> None:
    (backend,) = {event["backend"] for event in ended.of("ready")}
    assert max(found["worst"] for found in ended.results) <= JAGGED_BARS[backend]


def test_one_artifact_and_nothing_compiled_after_the_first_call(ended: Ended) -> None:
    assert sorted(event["role"] for event in ended.of("ready")) == ["built", "loaded"]
    assert len({event["digest"] for event in ended.of("ready")}) == 1
