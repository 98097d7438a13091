"""`lockstep watch`: what the ranks of a run do now, read from journals that grow."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from lockstep.cli import main
from lockstep.report.watch import Follower, table


def say(folder: Path, rank: int, *events: dict, torn: str = "") -> None:
    """Add lines to a rank's journal."""
    folder.mkdir(exist_ok=True)
    with (folder / f"rank-{rank}.jsonl").open("a") as file:
        for number, event in enumerate(events):
            line = {"time": 100.0 + number, "rank": rank, "world": 3, **event}
            file.write(json.dumps(line) + "\n")
        file.write(torn)


def shown(follower: Follower) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table(follower, 130.0, "run"))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_who_does_what_since_when_and_what_is_waited_for(tmp_path):
    folder = tmp_path / "run"
    say(folder, 0, {"event": "start"}, {"event": "stage", "stage": "capture", "topic": "step/v0"})
    for rank in (1, 2):
        say(folder, rank, {"event": "waits", "what": "waits for rank 0 to build step"})
    follower = Follower(folder)
    follower.look()
    text = shown(follower)
    assert "capture" in text and "step v0" in text and "29.0 s" in text
    assert "1-2" in text and "for rank 0 to build step" in text
    assert not follower.over


def test_half_a_line_is_taken_once_it_is_whole(tmp_path):
    folder = tmp_path / "run"
    line = json.dumps({"time": 101.0, "rank": 0, "world": 1, "event": "end", "why": "stuck"})
    say(folder, 0, {"event": "start", "world": 1}, torn=line[:20])
    follower = Follower(folder)
    follower.look()
    assert follower.ranks[0].phase == "starts"
    say(folder, 0, torn=line[20:] + "\n")
    follower.look()
    assert (follower.ranks[0].phase, follower.ranks[0].what) == ("failed", "stuck")
    assert follower.over


def test_numbers_that_were_recorded_and_the_end(tmp_path):
    folder, run = tmp_path / "run", {"step": "train", "variant": "v0"}
    for rank in range(3):
        say(folder, rank, {"event": "ran", **run, "call": 1, "seconds": 0.5},
            {"event": "record", "step": 7, "loss": 1.25})  # fmt: skip
    follower = Follower(folder)
    follower.look()
    assert "0-2" in shown(follower) and "step 7: loss 1.25" in shown(follower)
    for rank in range(3):
        say(folder, rank, {"event": "left"})
    follower.look()
    assert follower.over and follower.ranks[2].phase == "left"


def test_the_verb_looks_once_and_tells_of_a_failure(tmp_path, capsys):
    say(tmp_path / "run", 0, {"event": "start"})
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 0
    assert "3 ranks; 2 have written nothing here" in " ".join(capsys.readouterr().out.split())
    say(tmp_path / "run", 0, {"event": "fault", "what": "rank 0 failed", "culprit": 0})
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 1
    assert main(["watch", str(tmp_path / "gone")]) == 2
