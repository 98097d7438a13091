"""Whose turn it is to build what several jobs want that share a directory.

A builder makes a file that it rewrites at every beat; another job that finds it waits. Nothing but
work depends on it: two that build at once both write whole files, and each job runs the bytes that
its own ranks agreed on. No time of another machine's clock is looked at: a file whose content did
not change in so many of our polls is a builder that is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from lockstep.fleet.say import waits
from lockstep.fleet.state import State
from lockstep.fleet.store import Pause
from lockstep.fleet.timing import Timing


class Turn:
    """One job's turn at building a name.

    Args:
        folder: the shared directory.
        name: the artifact's name.
        job: a word of this job's alone.
        timing: `lease` is how long a builder may stand still, `build` how long it is waited for.
    """

    def __init__(self, folder: Path, name: str, job: str, timing: Timing) -> None:
        self._path, self._name, self._timing = folder / f".{name}.turn", name, timing
        self._host = socket.gethostname()
        self._me = f"{self._host} {os.getpid()} {job or secrets.token_hex(8)}"
        self._file: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lockstep-turn", daemon=True)

    def wait(self, pause: Pause) -> bool:
        """Wait until it is this job's turn; return whether that took a while.

        Args:
            pause: as in `ArtifactStore.turn`.
        """
        timing, seen, still, polls = self._timing, "", 0, 0
        while not self._begin():
            now = self._look()
            still = still + 1 if now == seen else 0
            seen = now
            late = still >= timing.polls(timing.lease) or polls >= timing.polls(timing.build)
            if late or self._is_over(now):
                self._seize()
                break
            host, process, *_ = now.split() or ("another host", "?")
            who = f"process {process} on {host}, of another job"
            pause(polls * timing.beat, f"{who}, to build {self._name}")
            polls += 1
        return polls > 0

    def end(self) -> None:
        """Let other jobs have their turn."""
        self._stop.set()
        if self._file is None:
            return
        self._thread.join(4 * self._timing.beat)
        with contextlib.suppress(OSError):
            if self._look().startswith(self._me):  # else another job took it, and holds it
                self._path.unlink()
        if not self._thread.is_alive():
            os.close(self._file)
            self._file = None

    def _begin(self) -> bool:
        try:
            self._hold(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        except OSError:
            return True  # what takes no file keeps no artifact either: there is nothing to share
        return True

    def _seize(self) -> None:
        mine = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._hold(os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            mine.replace(self._path)
        except OSError:
            mine.unlink(missing_ok=True)

    def _hold(self, file: int) -> None:
        self._file = file
        os.write(file, self._line(0))
        self._thread.start()

    def _beat(self) -> None:
        """Rewrite the file in place: who has its name open again sees the change, on NFS too."""
        count = 0
        while not self._stop.wait(self._timing.beat):
            count += 1
            try:
                os.pwrite(self._file or 0, self._line(count), 0)
                os.fdatasync(self._file or 0)
            except OSError:
                return

    def _line(self, count: int) -> bytes:
        return f"{self._me} {count:012d}\n".encode()

    def _look(self) -> str:
        try:
            return self._path.read_text(errors="replace")
        except OSError:  # it ended just now
            return ""

    def _is_over(self, line: str) -> bool:
        """Whether a line is of this very job, or of a process of this machine that has ended."""
        host, process, job = [*line.split(), "", "", ""][:3]
        if job and job == self._me.split()[2]:
            return True
        if host != self._host or not process.isdigit():
            return False
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False


def pause_of(state: State, stage: Callable[[str], None]) -> Pause:
    """Return how a rank waits for its job's turn: a beat at a time, until there is a fault."""

    def pause(seconds: float, what: str) -> None:
        if not seconds:
            stage("waiting for another job")
        state.raise_fault()
        if seconds % state.timing.say < state.timing.beat:
            state.say(f"rank {state.rank} {waits(seconds, what)}")
        state.faulted.wait(state.timing.beat)

    return pause
