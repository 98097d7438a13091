"""`LOCKSTEP=off|torch|torch-one-rank`: what runs, what is told, and what the journal holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.exc

import lockstep as ls
from lockstep.errors import LoweringError, UsageError
from lockstep.journal import Journal, read_journals
from lockstep.run import counting, torch_way
from tests.sources import ROOT


def train(way: str, folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the training script in a way; its process, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_way_script", *words],
        env={
            **os.environ, "LOCKSTEP": way, "LOCKSTEP_RUNS": str(folder / "runs"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_VEC_ISA_OK": "1",
        },
        capture_output=True, text=True, timeout=200, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.startswith("{"), done.stderr
    return done, json.loads(done.stdout.splitlines()[0])


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    return train("off", tmp_path_factory.mktemp("off"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Slow: torch compiles the step, from an empty cache."""
    folder = tmp_path_factory.mktemp("torch")
    done, seen = train("torch", folder, "refused")
    return done, seen, read_journals(folder / "runs" / "latest")


def test_off_is_eager_and_says_so(eager):
    done, seen = eager
    assert done.returncode == 0
    assert done.stderr == "[lockstep rank 0] LOCKSTEP=off: train_step runs eagerly\n"
    assert len(set(seen["losses"])) == 5


def test_a_step_with_backward_inside_trains_under_torch_compile_as_eagerly(eager, compiled):
    torch.testing.assert_close(compiled[1]["losses"], eager[1]["losses"], rtol=1e-5, atol=0)
    assert compiled[1]["flag"] is False


def test_torchs_own_cost_is_in_the_journal_and_told(compiled):
    done, _, events = compiled
    (ready,) = [event for event in events if event["event"] == "ready"]
    assert (ready["role"], ready["step"], ready["variant"]) == ("built", "train_step", "v0")
    assert (ready["by"], ready["backend"], ready["mode"]) == (0, "torch.compile", "torch")
    assert ready["lowerings"] == ready["misses"] == ready["graphs"] > 1  # backward() is a break
    assert ready["frames"] > 0
    assert ready["compilers"] == sum(ready["processes"].values()) > 0
    assert 0 < ready["seconds"]["compile"] < ready["seconds"]["total"]
    assert len(ready["digest"]) == 64
    assert Path(ready["path"]).name == "inductor"
    told = [line for line in done.stderr.splitlines() if line.startswith("[lockstep rank 0]")]
    assert told[0].endswith(
        "LOCKSTEP=torch: train_step runs under plain torch.compile, on every rank"
    )
    assert f"v0: rank 0 traced {ready['frames']} frame(s) and lowered" in told[1]
    assert [e["call"] for e in events if e["event"] == "ran"] == [1, 2, 3]


def test_what_torch_cannot_compile_is_said_and_kept(compiled):
    done, _, events = compiled
    assert done.returncode == 1
    text = "LS200: LOCKSTEP=torch: torch.compile cannot compile refused\n  got  "
    assert text in done.stderr.replace("[rank0]: ", "")
    (refused,) = [event for event in events if event["event"] == "refused"]
    assert refused["text"].startswith(text)
    assert "fix  unset LOCKSTEP\n  or   LOCKSTEP=off" in refused["text"]


# ---- without a compiler --------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch, tmp_path) -> Path:
    """TorchStep with a journal of its own, and `torch.compile` that gives the function back."""
    monkeypatch.setattr(torch_way, "_journal", lambda: journal)
    monkeypatch.setattr(torch, "compile", lambda function: function)
    journal = Journal(tmp_path / "rank-0.jsonl", 0)
    torch_way.start_process_group()
    return tmp_path


def test_later_calls_are_quiet_until_something_is_compiled(kept, monkeypatch):
    frames = [0]
    monkeypatch.setattr(torch_way._compat, "frame_count", lambda: lambda: frames[0])
    monkeypatch.setattr(
        torch_way._compat, "compile_counts", lambda: {"frames": frames[0], "hits": 0, "misses": 0}
    )

    def step(x: int) -> int:
        frames[0] += x == 9  # a new shape
        return x + 1

    run = torch_way.TorchStep("step", step)
    assert [run(x) for x in (1, 1, 1, 1, 1, 9, 1)] == [2, 2, 2, 2, 2, 10, 2]
    events = [(e["event"], e["variant"], e.get("call")) for e in read_journals(kept)]
    assert events == [
        ("ready", "v0", None), ("ran", "v0", 1), ("ran", "v0", 2), ("ran", "v0", 3),
        ("ready", "v1", None), ("ran", "v1", 6),
    ]  # fmt: skip


def test_under_the_flag_a_refusal_names_the_way_without_it(kept, monkeypatch):
    monkeypatch.setenv("LOCKSTEP", "torch-one-rank")

    def step() -> None:
        raise torch._dynamo.exc.Unsupported("async collectives\nmore", "gb0000")

    with pytest.raises(LoweringError) as caught:
        torch_way.TorchStep("step", step)()
    assert str(caught.value) == (
        "LS200: LOCKSTEP=torch-one-rank: torch.compile cannot compile step\n"
        "  got  Unsupported: async collectives\n"
        "  why  this is torch's own compiler, without anything of Lockstep's\n"
        "  fix  unset LOCKSTEP\n"
        "  or   LOCKSTEP=torch\n"
        "  or   LOCKSTEP=off"
    )
    assert [e["event"] for e in read_journals(kept)] == ["refused"]


def test_the_users_own_error_is_left_as_it_is(kept):
    def step() -> None:
        raise KeyError("lr")

    with pytest.raises(KeyError, match="lr"):
        torch_way.TorchStep("step", step)()


def test_the_flag_is_set_by_its_way_alone(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    with torch.compiler.config.patch(compile_on_one_rank=False):
        for way, flag in (("off", False), ("torch", False), ("torch-one-rank", True)):
            monkeypatch.setenv("LOCKSTEP", way)
            torch_way.other_way("step", print)
            assert torch.compiler.config.compile_on_one_rank is flag
    told = capsys.readouterr().err.splitlines()
    assert told[2] == (
        "[lockstep rank 0] LOCKSTEP=torch-one-rank: step runs under torch.compile with "
        "compile_on_one_rank, on every rank"
    )


def test_another_rank_says_nothing(monkeypatch, capsys):
    monkeypatch.setenv("LOCKSTEP", "off")
    monkeypatch.setenv("RANK", "1")
    assert torch_way.other_way("step", print) is print
    assert capsys.readouterr().err == ""


def test_an_unknown_word_is_refused_with_the_known_ones(monkeypatch):
    monkeypatch.setenv("LOCKSTEP", "eager")
    with pytest.raises(UsageError, match="one of on, off, torch, torch-one-rank, or unset"):
        ls.compile(lambda: 1)()


def test_only_starts_of_compilers_are_counted():
    before = counting.counting().copy()
    for command in (["g++", "--version"], ["true"], ["/usr/bin/env", "g++", "--version"]):
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    subprocess.run("g++ --version", shell=True, stdout=subprocess.DEVNULL, check=True)
    assert counting.counting() - before == {"g++": 1}  # the others are started by a child


@pytest.mark.parametrize(
    ("executable", "command", "name"),
    [
        (None, ["x86_64-linux-gnu-g++-13", "-c"], None),
        (None, ["/opt/bin/g++-13", "-c"], "g++"),
        (b"/usr/local/cuda/bin/ptxas", [b"ptxas"], "ptxas"),
        ("/bin/sh", "clang++ -c a.cpp", "clang++"),
        (None, ["python"], None),
        (None, [], None),
    ],
)
def test_a_compiler_is_known_by_its_name(executable, command, name):
    assert counting.compiler_name(executable, command) == name
