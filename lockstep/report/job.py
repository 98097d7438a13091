"""Run a command to its end or its time limit, and leave none of its processes behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_S = 5.0  # what a launcher gets to end its ranks by itself


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit code (None: stopped at its limit), its output, its seconds."""

    code: int | None
    output: str
    seconds: float

    def tail(self, lines: int = 30) -> str:
        """The end of the output."""
        return "\n".join(self.output.rstrip().splitlines()[-lines:])


def run_job(command: Sequence[str], env: dict[str, str], limit_s: float) -> Outcome:
    """Run a command, its output kept; at the limit, and when this call is left, all of it is ended.

    Args:
        command: the program and its arguments.
        env: its whole environment.
        limit_s: seconds after which it is stopped.

    Returns:
        How it ended.
    """
    begin = time.monotonic()
    with tempfile.TemporaryFile() as output, _termination_as_exit():
        # A session of its own: Ctrl-C reaches this process alone, which then ends the job in order.
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Outcome(code, text, time.monotonic() - begin)


@contextlib.contextmanager
def _termination_as_exit() -> Iterator[None]:
    """A SIGTERM leaves by SystemExit while inside, so that the job is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, _frame: object) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the job to end, then make it end: ranks have sessions of their own, and may not hear."""
    if process.poll() is not None:
        return
    family = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        family += descendants(process.pid)
        process.kill()
        process.wait()
    for pid, born in family:
        if _born(pid) == born:
            os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[tuple[int, str]]:
    """The live processes below one: (process id, its start time, so that no other is meant)."""
    parents, found = _parents(), {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [(pid, _born(pid)) for pid in found - {root}]


def children(parent: int) -> list[int]:
    """The live processes that one has started itself."""
    return [pid for pid, other in _parents().items() if other == parent]


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _fields(int(entry.name))
            if fields:
                parents[int(entry.name)] = int(fields[1])
    return parents


def _born(pid: int) -> str:
    fields = _fields(pid)
    return fields[19] if fields else ""


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
