"""`lockstep train` on two ranks: a signal saves and leaves, a second start goes on to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.trainer.metrics import read
from tests.ranks.launch import ROOT, Torchrun

STEPS = 60
WORDS = [
    *("train", "llama3:debug", "--backend", "graph", "--metrics.every", "1"),
    *("--model.dim", "16", "--model.layers", "1", "--model.heads", "2", "--model.kv-heads", "1"),
    *("--model.ffn", "32", "--data.batch", "4", "--data.sequence", "8"),
    *("--checkpoint.every", "20", "--schedule.steps", str(STEPS)),
]


STAGES = [
    *("train", "llama3:debug", "--backend", "graph", "--metrics.every", "1", "--model.tied"),
    *("--model.dim", "16", "--model.layers", "2", "--model.heads", "2", "--model.kv-heads", "1"),
    *("--model.ffn", "32", "--data.batch", "4", "--data.sequence", "8"),
    *("--data.micro-batches", "2", "--eval.every", "2", "--eval.batches", "1"),
    *("--schedule.warmup", "0", "--schedule.decay", "none"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("train")


def environment(folder: Path) -> dict[str, str]:
    names = {"LOCKSTEP_STORE": "store", "LOCKSTEP_RUNS": "runs"}
    return {**os.environ, **{name: str(folder / part) for name, part in names.items()}}


def test_a_signal_to_the_command_saves_and_leaves_and_the_next_start_ends(folder: Path) -> None:
    words = [*WORDS, "--folder", str(folder / "out")]
    lines = folder / "out" / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", *words, "--nproc-per-node", "2"],
        env=environment(folder), cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not read(lines) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=120)
    assert process.returncode == 75, printed
    left = read(lines)[-1]["step"]
    assert 0 < left < STEPS
    assert f"[lockstep rank 0] leaves at step {left}, exit code 75: SIGTERM; saved" in printed
    journals = (folder / "runs" / "latest").glob("*.jsonl")
    events = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    told = [(e["rank"], e["code"]) for e in events if e["event"] == "trained"]
    assert sorted(told) == [(0, 75), (1, 75)]

    with Torchrun() as torchrun:
        env = {"LOCKSTEP_STORE": str(folder / "store")}
        ended = torchrun.run("lockstep", *words, folder=folder / "again", env=env)
    assert ended.code == 0, ended.report()
    assert f"step-{left:08d}: step {left} of {STEPS}" in ended.texts[0]
    assert [row["step"] for row in read(lines)] == list(range(1, STEPS + 1))
    assert read(lines)[-1]["loss"] < read(lines)[0]["loss"]
    assert {e["role"] for e in ended.of("ready")} == {"loaded"}


def test_stages_train_as_one_rank_and_one_rank_goes_on_from_them(tmp_path: Path) -> None:
    env = {"LOCKSTEP_STORE": str(tmp_path / "store")}

    def run(name: str, steps: int, world: int, *more: str) -> dict[tuple[str, int], float]:
        words = [*STAGES, *more, "--schedule.steps", str(steps), "--folder", str(tmp_path / name)]
        at = tmp_path / f"{name}{steps}"
        ended = torchrun.run("lockstep", *words, folder=at, world=world, env=env)
        assert ended.code == 0, ended.report()
        rows = read(tmp_path / name / "metrics.jsonl")
        return {(row["kind"], row["step"]): row["loss"] for row in rows}

    with Torchrun() as torchrun:
        alone = run("one", 4, 1)
        run("two", 2, 2, "--mesh.pp", "2")
        went_on = run("two", 4, 1)
    assert [key for key in alone if key[0] == "eval"] == [("eval", 2), ("eval", 4)]
    assert went_on == pytest.approx(alone, rel=1e-5)
