"""Two jobs, one directory, one miss: the second waits while the first shows signs of life."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from lockstep.errors import FleetError
from lockstep.fleet import ArtifactStore, Fleet, Timing
from lockstep.fleet.stores import write_whole
from lockstep.fleet.turns import Turn

NAME = "step.lockstep"
QUICK = Timing(beat=0.05, lease=0.5, build=5, say=1)


class Waiting:
    """How a turn was waited for; ends the wait by what it is told to do."""

    def __init__(self, then=lambda count: None) -> None:
        self.told: list[str] = []
        self._then = then

    def __call__(self, seconds: float, what: str) -> None:
        self.told.append(what)
        self._then(len(self.told))
        time.sleep(QUICK.beat)


def other_job(folder: Path) -> Turn:
    """The turn of another job, whose process is this one."""
    turn = Turn(folder, NAME, "theirs", QUICK)
    assert turn.wait(Waiting()) is False
    return turn


def test_a_turn_that_nobody_has_is_taken_and_left(tmp_path) -> None:
    waiting, turn = Waiting(), Turn(tmp_path, NAME, "mine", QUICK)
    assert turn.wait(waiting) is False and waiting.told == []
    assert [path.name for path in tmp_path.iterdir()] == [f".{NAME}.turn"]
    turn.end()
    assert list(tmp_path.iterdir()) == []


def test_a_job_waits_for_another_one_that_lives_and_then_has_its_turn(tmp_path) -> None:
    other = other_job(tmp_path)
    waiting = Waiting(lambda count: other.end() if count == 30 else None)  # 3 times the lease
    turn = Turn(tmp_path, NAME, "mine", QUICK)
    assert turn.wait(waiting) is True
    assert 30 <= len(waiting.told) < 40
    assert waiting.told[0].startswith(f"process {os.getpid()} on ")
    assert waiting.told[0].endswith(f", of another job, to build {NAME}")
    turn.end()
    assert list(tmp_path.iterdir()) == []


def test_one_whose_file_does_not_change_is_not_waited_for(tmp_path) -> None:
    """Of another machine: its process cannot be looked for, and its clock is not asked."""
    file = tmp_path / f".{NAME}.turn"
    file.write_text("elsewhere 1 0123 000000000007\n")
    os.utime(file, (2**31, 2**31))
    waiting, turn = Waiting(), Turn(tmp_path, NAME, "mine", QUICK)
    assert turn.wait(waiting) is True
    assert len(waiting.told) == QUICK.polls(QUICK.lease)
    assert file.read_text().split()[2] == "mine"
    turn.end()
    assert list(tmp_path.iterdir()) == []


def test_the_limit_of_a_build_holds_for_one_that_lives(tmp_path) -> None:
    file, timing = tmp_path / f".{NAME}.turn", Timing(beat=0.05, lease=0.5, build=1)
    waiting = Waiting(lambda count: file.write_text(f"elsewhere 1 0123 {count}\n"))
    waiting(0, "")
    turn = Turn(tmp_path, NAME, "mine", timing)
    assert turn.wait(waiting) is True and len(waiting.told) == 1 + timing.polls(timing.build)
    turn.end()


@pytest.mark.parametrize("line", ["{host} {gone} 0123 000000000007", "elsewhere 1 mine 0000"])
def test_a_process_that_has_ended_and_ones_own_job_are_not_waited_for(tmp_path, line) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    text = line.format(host=socket.gethostname(), gone=ended.pid)
    (tmp_path / f".{NAME}.turn").write_text(text)
    waiting, turn = Waiting(), Turn(tmp_path, NAME, "mine", QUICK)
    assert turn.wait(waiting) is False and waiting.told == []
    turn.end()


def test_who_lost_its_turn_leaves_the_others_file_alone(tmp_path) -> None:
    first, second = Turn(tmp_path, NAME, "one", QUICK), Turn(tmp_path, NAME, "two", QUICK)
    first.wait(Waiting())
    (tmp_path / f".{NAME}.turn").unlink()
    second.wait(Waiting())
    first.end()
    assert (tmp_path / f".{NAME}.turn").read_text().split()[2] == "two"
    second.end()


def test_a_directory_that_takes_nothing_has_no_turns(tmp_path) -> None:
    turn = Turn(tmp_path / "gone", NAME, "mine", QUICK)
    assert turn.wait(Waiting()) is False
    turn.end()


def test_a_job_takes_what_another_has_built_meanwhile(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("LOCKSTEP_TIMING", "beat=0.05,say=1")
    store = ArtifactStore(tmp_path / "store")
    store.prepare(NAME)
    other, turn = other_job(store.path), store.turn

    def build(stage) -> bytes:
        raise AssertionError("the other job has built it")

    def watched(name, job, timing, pause) -> bool:
        def finish(seconds: float, what: str) -> None:
            pause(seconds, what)
            if seconds > 0.2:
                write_whole(store.path / NAME, b"theirs")
                other.end()

        return turn(name, job, timing, finish)

    store.turn = watched
    got = Fleet(None, 0, 1, "run/0").obtain("step/v0", {}, NAME, store, build)
    assert got.data == b"theirs"
    told = capsys.readouterr().err
    assert f"waits for process {os.getpid()} on " in told
    assert "takes step as another job has built it meanwhile" in told
    assert not list(store.path.glob(".*.turn"))


def test_a_build_that_fails_ends_the_turn(tmp_path) -> None:
    store = ArtifactStore(tmp_path / "store")

    def build(stage) -> bytes:
        assert list(store.path.glob(".*.turn"))
        raise FleetError("no")

    with pytest.raises(FleetError, match="no"):
        Fleet(None, 0, 1, "run/0").obtain("step/v0", {}, NAME, store, build)
    assert list(store.path.iterdir()) == []
