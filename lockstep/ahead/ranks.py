"""The processes that play ranks, forked from one that has torch loaded; each runs the script."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.ahead.line import Line
from lockstep.ahead.maker import Task


@dataclass
class Played:
    """A rank's process, seen from the one that forked it.

    Args:
        out: the file that gets what it prints.
        ended: it has told how its script ended.
        waits: what it has asked, about which step; it runs on when it is answered.
    """

    task: Task
    pid: int
    up: int
    down: int
    out: Path
    waits: tuple[str, str] | None = None
    rest: bytes = b""
    ended: bool = False

    def answer(self, **fields: Any) -> None:
        """Let it run on."""
        self.waits = None
        with contextlib.suppress(BrokenPipeError):
            os.write(self.down, json.dumps(fields).encode() + b"\n")


@dataclass
class Ranks:
    """All of them.

    Args:
        most: how many may run at a time; those that wait do not count.
        play: what a forked process does.
    """

    most: int
    play: Callable[[Task, Line], None]
    live: dict[int, Played] = field(default_factory=dict)
    todo: deque[Task] = field(default_factory=deque)
    peak_kb: int = 0
    cpu_s: float = 0.0

    def events(self) -> Iterator[tuple[Played, dict[str, Any]]]:
        """Start what is to be done and yield what they say; "gone" comes last of each."""
        with selectors.DefaultSelector() as selector:
            try:
                while self.todo or self.live:
                    self._start(selector)
                    for key, _ in selector.select():
                        yield from self._read(selector, self.live[key.fd])
            finally:
                self.end()

    def end(self) -> None:
        """End all that still run."""
        self.todo.clear()
        for rank in list(self.live.values()):
            os.kill(rank.pid, signal.SIGKILL)
            self._reap(rank)

    def _start(self, selector: selectors.BaseSelector) -> None:
        while self.todo and sum(not rank.waits for rank in self.live.values()) < self.most:
            rank = self._forked(self.todo.popleft())
            self.live[rank.up] = rank
            selector.register(rank.up, selectors.EVENT_READ)

    def _forked(self, task: Task) -> Played:
        up, down = os.pipe(), os.pipe()
        out = task.folder / f"out-{task.rank}"
        pid = os.fork()
        if pid == 0:
            try:
                for other in self.live.values():
                    os.close(other.down)
                os.close(down[1])
                _redirect(out)
                self.play(task, Line(up[1], down[0]))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # whatever the script has started need not end in order
        os.close(up[1])
        os.close(down[0])
        return Played(task, pid, up[0], down[1], out)

    def _read(
        self, selector: selectors.BaseSelector, rank: Played
    ) -> Iterator[tuple[Played, dict[str, Any]]]:
        data = os.read(rank.up, 1 << 20)
        *lines, rank.rest = (rank.rest + data).split(b"\n")
        for line in lines:
            yield rank, json.loads(line)
        if not data:
            selector.unregister(rank.up)
            self._reap(rank)
            yield rank, {"event": "gone"}

    def _reap(self, rank: Played) -> None:
        self.live.pop(rank.up, None)
        os.close(rank.up)
        os.close(rank.down)
        _, _, used = os.wait4(rank.pid, 0)
        self.peak_kb = max(self.peak_kb, used.ru_maxrss)
        self.cpu_s += used.ru_utime + used.ru_stime


def own_peak_kb() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _redirect(out: Path) -> None:
    target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
