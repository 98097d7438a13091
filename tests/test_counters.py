"""The counters count: each has a case in which it is not zero."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import torch

from lockstep.build.artifact import pack
from lockstep.build.backends import lower
from lockstep.run.loader import load_program
from tests.counters import Counts, counting, recorded_calls, recording_compilers
from tests.graphs import trace


def test_compiling_is_counted_in_each_kind() -> None:
    import torch._inductor.config as config

    torch._dynamo.reset()
    with config.patch(fx_graph_cache=False), counting() as counts:
        torch.compile(lambda x: x * 3 + 1)(torch.ones(7))
    assert counts.frames >= 1 and counts.lowerings == 1 and counts.builds >= 1
    with counting() as counts:
        trace(lambda x: (x + 1,), [torch.ones(2)])
        subprocess.run(["true"], check=True)
    assert counts == Counts(traces=1, processes=1)


def test_loading_and_running_counts_nothing() -> None:
    artifact = pack({}, lower(trace(lambda x: (x * 3 + 1,), [torch.ones(7)]), "inductor"))
    with counting() as counts:
        (out,) = load_program(artifact)([torch.ones(7)])
    assert counts == Counts() and out.tolist() == [4.0] * 7


def test_recording_compilers_record(tmp_path: Path) -> None:
    env = os.environ | recording_compilers(tmp_path / "bin")
    assert recorded_calls(tmp_path / "bin") == []
    assert subprocess.run(["g++", "--version"], env=env).returncode == 1
    assert recorded_calls(tmp_path / "bin") == ["g++ --version"]
