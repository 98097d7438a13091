"""The slow network keeps its time, and the lines about passes hold only where they should."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import passes, step
from bench.slow_network import AT_ONCE, Network, _Slow


class _Done:
    """Work that gloo has done already."""

    def wait(self) -> None:
        """Nothing to wait for."""


class _Gloo:
    """Stands for gloo's group."""

    def allreduce(self, *_: Any) -> _Done:
        return _Done()


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in {"delay_s": 0.02, "gbit_s": 0.0, "slept_s": 0.0}.items():
        monkeypatch.setattr(Network, name, value)
    return _Slow(_Gloo(), 0, 1)


def slept(group: Any, count: int) -> float:
    """Seconds slept for collectives that are all started before the first is waited for."""
    Network.slept_s = 0.0
    for work in [group.allreduce([torch.ones(4)]) for _ in range(count)]:
        work.wait()
    return Network.slept_s


def test_a_group_carries_two_collectives_at_once_each_with_its_delay(group: Any) -> None:
    assert AT_ONCE == 2
    assert slept(group, 1) <= 0.02
    assert 0.02 < slept(group, 4) <= 0.04  # two after two


def test_a_collective_takes_its_bytes_at_the_rate(group: Any) -> None:
    assert Network.takes(torch.ones(1000)) == 0.02
    Network.gbit_s = 0.001
    assert Network.takes(torch.ones(1000)) == pytest.approx(0.02 + 0.032)


def ranks(
    both: float = 2.0,
    same: bool = True,
    differing: int = 0,
    peak: int = 7,
    slower: float = 1.0,
    held: int = 1,
) -> list[dict[str, Any]]:
    """What two ranks wrote; rank 1 is the slower."""
    asleep = {passes.NONE: 20.0, passes.BUCKET: 5.0, passes.OVERLAP: 9.0, passes.BOTH: both}
    asleep[passes.MEMORY] = 20.0
    peaks = dict.fromkeys(asleep, 10) | {passes.MEMORY: peak}

    def rank(share: float) -> dict[str, Any]:
        slow = {name: [(0.1, share * ms / 1e3)] * 3 for name, ms in asleep.items()}
        seconds = {passes.FAST: {name: [(0.1, 0.0)] * 3 for name in asleep}, passes.SLOW: slow}
        told = {"seconds": seconds, "same": {passes.BOTH: same}, "differing": differing}
        taken = {passes.LISTS: [1.0] * 3, passes.SINGLES: [slower] * 3}
        told |= {"update seconds": taken, "update same": same}
        held_at = {passes.LISTS: 100, passes.SINGLES: held}
        return told | {"peaks": peaks, "update peaks": held_at}

    return [rank(0.5), rank(1.0)]


def test_what_overlap_hides_is_the_part_that_is_no_more_slept() -> None:
    lines = passes.judge(ranks(), wide=7)
    assert [holds for holds, _ in lines] == [True] * 5
    assert lines[2][1] == "overlap hides 60% of 5.00 ms asleep, at least 50%"
    assert lines[1][1] == "0 numbers differ where two ranks sum side by side; 7 with four"


@pytest.mark.parametrize(
    ("given", "failed"),
    [
        ({"both": 3.0}, [2]),
        ({"same": False}, [0, 4]),
        ({"differing": 1}, [1]),
        ({"peak": 9}, [3]),
        ({"slower": 1.1}, [4]),
        ({"held": 11}, [4]),
    ],
)
def test_a_line_about_passes_that_does_not_hold_is_told(given: Any, failed: Any) -> None:
    lines = passes.judge(ranks(**given), wide=7)
    assert [at for at, (holds, _) in enumerate(lines) if not holds] == failed


@pytest.mark.parametrize(
    ("delay", "ours", "same", "holds"),
    [
        (0.0, 1.03, True, True),
        (0.0, 1.04, True, False),
        (0.0, 1.0, False, False),
        (1.0, 0.9, True, True),
        (1.0, 0.92, True, False),
    ],
)
def test_the_lines_of_two_ranks_hold_where_they_should(
    delay: float, ours: float, same: bool, holds: bool
) -> None:
    seconds = {step.TORCH: [1.0, 1.0], step.OURS: [ours, ours]}
    assert step.judged(delay, [{"seconds": seconds, "same": same}] * 2)[0] is holds
