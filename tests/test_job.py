"""A job's processes are all gone when its call is left, and each compiler it starts is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lockstep.report.compilers import Recorder
from lockstep.report.job import descendants, run_job

# A launcher that does not hear, and a rank with a session of its own, as torchrun makes them.
STUBBORN = """
import os, signal, subprocess, sys, time
SLEEP = "import time; time.sleep(60)"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {rank.pid}")
print("started", flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(path: Path) -> list[int]:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if path.exists() and len(path.read_text().split()) == 2:
            return [int(word) for word in path.read_text().split()]
        time.sleep(0.02)
    raise AssertionError("the job did not start")


def gone(pids: list[int]) -> bool:
    limit = time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < limit:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_a_job_tells_its_code_output_and_seconds():
    outcome = run_job(
        [sys.executable, "-c", "print('a\\nb\\nc'); raise SystemExit(3)"], dict(os.environ), 30
    )
    assert (outcome.code, outcome.output, outcome.tail(2)) == (3, "a\nb\nc\n", "b\nc")
    assert 0 < outcome.seconds < 30


def test_a_job_at_its_limit_is_ended_with_all_its_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("lockstep.report.job._PATIENCE_S", 0.2)
    outcome = run_job(
        [sys.executable, "-c", STUBBORN, str(tmp_path / "pids")], dict(os.environ), 6.0
    )
    assert outcome.code is None
    assert outcome.output == "started\n"
    assert gone(wait_for(tmp_path / "pids"))


@pytest.fixture
def hears_interrupts():
    """Python's own handler: a shell starts what runs in the background without one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_an_interrupt_ends_the_job_and_goes_on_to_the_caller(number, left, tmp_path, monkeypatch):
    monkeypatch.setattr("lockstep.report.job._PATIENCE_S", 0.2)
    file = tmp_path / "pids"

    def interrupt() -> None:
        wait_for(file)
        os.kill(os.getpid(), number)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(left):
        run_job([sys.executable, "-c", STUBBORN, str(file)], dict(os.environ), 60)
    helper.join()
    assert gone(wait_for(file))


def test_a_process_that_lives_is_seen_to_live():
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert alive(child.pid)
        assert child.pid in [pid for pid, _ in descendants(os.getpid())]
    finally:
        child.kill()
        child.wait()
    assert child.pid not in [pid for pid, _ in descendants(os.getpid())]


@pytest.fixture
def compiler(tmp_path, monkeypatch) -> Path:
    """A `g++` that only says its arguments, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "g++"
    path.write_text('#!/bin/sh\necho "compiled $*"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CXX", raising=False)
    return path


def test_each_start_of_a_compiler_is_recorded_by_rank_and_still_runs(tmp_path, compiler):
    recorder = Recorder(tmp_path / "stand-ins")
    env = recorder.environment(dict(os.environ))
    for rank, words in (("0", "-c a.cpp"), ("1", "-c 'b c.cpp'"), ("1", "--version")):
        done = subprocess.run(
            ["sh", "-c", f"sh -c \"g++ {words}\""],  # a grandchild, as a pool of compilers makes
            env={**env, "RANK": rank}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == f"compiled {words}\n".replace("'", "")
    assert recorder.started() == {"g++": 3}
    assert recorder.started(rank=1) == {"g++": 2}
    assert recorder.started(rank=2) == {}
    recorder.clear()
    assert recorder.started() == {}


def test_a_compiler_that_cxx_names_is_recorded_too(tmp_path, compiler):
    own = compiler.rename(compiler.with_name("my-g++-13"))
    recorder = Recorder(tmp_path / "stand-ins")
    env = recorder.environment({**os.environ, "CXX": str(own)})
    done = subprocess.run([env["CXX"], "-v"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "compiled -v\n"
    assert recorder.started() == {"my-g++-13": 1}
