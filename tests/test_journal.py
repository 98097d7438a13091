"""A journal holds whole lines only, whoever writes, and reads back in the order of time."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.journal import Journal, read_journals


def _write(path: Path, rank: int) -> None:
    journal = Journal(path, rank, world=4)
    for i in range(200):
        journal.event("tick", i=i, text="x" * 300)


def test_lines_of_several_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write, args=(path, rank)) for rank in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 600
    assert [line["i"] for line in lines if line["rank"] == 1] == list(range(200))
    assert lines[0]["world"] == 4


def test_a_torn_line_is_dropped_and_the_rest_is_sorted(tmp_path: Path) -> None:
    Journal(tmp_path / "b.jsonl", 1).event("second")
    Journal(tmp_path / "a.jsonl", 0).event("third", time=float("inf"))
    (tmp_path / "c.jsonl").write_text('{"time": 0, "event": "first"}\n{"time": 1, "ev')
    assert [e["event"] for e in read_journals(tmp_path)] == ["first", "second", "third"]


def test_no_path_keeps_nothing_and_a_closed_journal_drops() -> None:
    journal = Journal(None, 0)
    journal.event("lost")
    journal.close()


def test_a_full_disk_ends_the_journal_and_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal("/dev/full", 3)
    journal.event("lost")
    journal.event("lost too")
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("[lockstep rank 3] warning: the journal ends here: ")
    assert "No space left on device" in told and told.endswith("(/dev/full)")


def traced(folder: Path, **environ: str) -> str:
    """What torch's trace holds of an event that a process writes."""
    code = (
        "import torch; from lockstep.journal import Journal;"
        f"Journal({str(folder / 'own.jsonl')!r}, 0).event('loaded', seconds=0.5)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TORCH_TRACE"} | environ
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert read_journals(folder)[0]["event"] == "loaded"
    return "".join(path.read_text() for path in folder.glob("*.log"))


def test_an_event_is_in_torchs_own_trace_where_it_is_asked_for(tmp_path: Path) -> None:
    text = traced(tmp_path, TORCH_TRACE=str(tmp_path))
    assert '"name": "lockstep_loaded", "encoding": "json"' in text and '"seconds": 0.5' in text
    assert traced(tmp_path / "without") == ""
