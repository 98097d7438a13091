"""Models in a DDP are taken into the graph with its reductions; what it leaves out is found.

The scripts are in `ddp.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.launch import Torchrun

SCRIPT = "tests.ranks.ddp"


@pytest.fixture(scope="module")
def torchrun() -> Iterator[Torchrun]:
    with Torchrun() as launcher:
        yield launcher


def refused(torchrun: Torchrun, name: str, folder: Path, *texts: str) -> None:
    ended = torchrun.run(SCRIPT, name, folder=folder)
    assert ended.code == 1, ended.report()
    for text in texts:
        assert text in ended.texts[0], f"{text!r} is missing\n{ended.report()}"


def test_every_kind_trains_as_the_wrapper_itself(torchrun: Torchrun, tmp_path: Path) -> None:
    """On three ranks, whose mean rounds: a division in place of the reducer's product shows."""
    ended = torchrun.run(SCRIPT, "bitwise", folder=tmp_path, world=3, limit=300.0)
    assert ended.code == 0, ended.report()
    assert ended.results[0] == ended.results[1] == ended.results[2]
    found = ended.results[0]
    assert found["cases"] == {name: [] for name in found["cases"]} and len(found["cases"]) == 12
    assert found["divided"] == [1, 2, 3], "only the first call is the wrapper's own"
    assert found["given"].startswith(
        "LS100: model.module.down.bias has a gradient from before the step, and model "
        "gradient_as_bucket_view=True"
    )
    told = "runs as it is until DDP has the last buckets of model"
    assert told in ended.texts[0] and told not in ended.texts[1]
    as_it_is = [row["step"] for row in ended.of("as_it_is", rank=0)]
    # All but the kind whose buckets never change; twice under static_graph=True.
    assert len(as_it_is) == 14 and len(set(as_it_is)) == 12


def test_the_builder_finds_the_reducer_in_the_graph(torchrun: Torchrun, tmp_path: Path) -> None:
    ended = torchrun.run(SCRIPT, "compared", folder=tmp_path)
    assert ended.code == 0, ended.report()
    (eager,) = ended.of("eager", rank=0)
    assert eager["result"] == "equal"
    assert eager["collectives"] == {"all_reduce over dp": 2, "broadcast over dp": 2}


def test_no_sync_left_on_is_found(torchrun: Torchrun, tmp_path: Path) -> None:
    refused(torchrun, "unreduced", tmp_path, "LS500", "LS514", "tests/ranks/ddp.py:")


def test_a_parameter_outside_of_the_wrapper_is_found(torchrun: Torchrun, tmp_path: Path) -> None:
    refused(torchrun, "outside", tmp_path, "LS500", "model.head")
