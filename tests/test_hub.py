"""The hub that live ranks of a job meet at: results, ranks that part, and ranks that leave."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.checker.live.meeting import start
from lockstep.errors import CaptureError
from lockstep.report.hub import Hub, meeting_at
from lockstep.spmd import collectives

TP = {"tp": 2}


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    """A hub that serves at "hub" of the test's folder."""
    made = Hub(tmp_path / "hub")
    with made.serving():
        yield made


def talk(folder: Path, place: int, words: Sequence[Any], step: str = "train_step") -> list[Any]:
    """Be a rank: start each collective that is given, wait for each number; what came back."""
    with Client(str(folder / "hub"), "AF_UNIX") as connection:
        connection.send_bytes(pickle.dumps((step, TP, place)))
        heard = []
        for word in words:
            connection.send_bytes(pickle.dumps(word))
            if isinstance(word, int):
                found = pickle.loads(connection.recv_bytes())
                heard.append(found if found is None else found.tolist())
        return heard


def at_once(folder: Path, *ranks: Sequence[Any]) -> list[list[Any]]:
    """What each of several ranks heard, which talk at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        talks = [pool.submit(talk, folder, place, words) for place, words in enumerate(ranks)]
        return [one.result(20) for one in talks]


def summed(number: int, value: float, line: str = "a.py:1") -> Any:
    return start(number, "all_reduce", "tp", (torch.full((2,), value), "sum"), line)


def test_ranks_get_the_results_of_their_collectives(hub, tmp_path):
    words = [summed(1, 1.0), 1, summed(2, 5.0), 2], [summed(1, 2.0), summed(2, 7.0), 2, 1]
    assert at_once(tmp_path, *words) == [[[3.0, 3.0], [12.0, 12.0]], [[12.0, 12.0], [3.0, 3.0]]]
    assert hub.parted == {}


def test_a_rank_that_leaves_is_told_to_those_that_wait(hub, tmp_path):
    assert at_once(tmp_path, [summed(1, 1.0), 1], []) == [[None], []]
    finding = hub.parted["train_step"].finding
    assert (finding.code, finding.line) == ("LS510", "a.py:1")
    assert finding.got.splitlines()[1] == "rank 1: has left the step"


def test_ranks_that_start_different_ones_part(hub, tmp_path):
    other = start(1, "all_reduce", "tp", (torch.ones(3), "sum"), "b.py:2")
    heard = at_once(tmp_path, [summed(1, 1.0), 1], [other, 1])
    assert heard == [[None], [None]]
    assert "b.py:2" in hub.parted["train_step"].finding.got


def test_steps_have_meetings_of_their_own(hub, tmp_path):
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(talk, tmp_path, 0, [summed(1, 1.0), 1], "one")
        talk(tmp_path, 1, [summed(1, 2.0)], "other")
        talk(tmp_path, 1, [summed(1, 4.0), 1], "one")
        assert one.result(20) == [[5.0, 5.0]]
    assert hub.parted == {}


def test_functional_collectives_go_there_while_a_rank_is_meeting(hub, tmp_path):
    def reduced() -> torch.Tensor:
        return collectives.wait(collectives.all_reduce(torch.ones(2), "sum", "tp"))

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(talk, tmp_path, 1, [summed(1, 2.0), 1])
        with meeting_at(str(tmp_path / "hub"), "train_step", TP, 0):
            assert reduced().tolist() == [3.0, 3.0]
        assert other.result(20) == [[3.0, 3.0]]
    with meeting_at(str(tmp_path / "hub"), "alone", {"tp": 1}, 0):
        assert reduced().tolist() == [1.0, 1.0]
        with pytest.raises(CaptureError, match="a collective on dp, which is no axis"):
            collectives.all_reduce(torch.ones(2), "sum", "dp")


def test_a_rank_whose_collective_does_not_meet_is_told(hub, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(talk, tmp_path, 1, []).result(20)
        with meeting_at(str(tmp_path / "hub"), "train_step", TP, 0):
            with pytest.raises(CaptureError, match="the ranks' collectives do not meet"):
                collectives.wait(collectives.all_reduce(torch.ones(2), "sum", "tp"))
