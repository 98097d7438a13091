"""Refusing: an ordinary capture stops at the first obstacle, a collecting one goes on.

`lockstep check --capture` lists all obstacles that one pass can reach. Where something has a safe
stand-in (the rank's number, a made-up tensor, one side of a branch), the refusal is kept and the
trace goes on with it; what comes out of such a trace is never run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from lockstep.errors import LockstepError


class Obstacles:
    """What a collecting capture has met so far, each once.

    Args:
        assume: by "file:line", the side of a branch to take there instead of the first.
    """

    def __init__(self, assume: dict[str, bool] | None = None) -> None:
        self.found: list[LockstepError] = []
        self.taken: list[str] = []
        self._assume = assume or {}
        self._about: list[Any] = []

    def add(self, error: LockstepError, about: Any = None) -> None:
        """Keep a refusal, unless there is one of the same text, or about the same object."""
        if about is not None and self.knows(about):
            return
        if about is not None:
            self._about.append(about)
        if str(error) not in map(str, self.found):
            self.found.append(error)

    def knows(self, about: Any) -> bool:
        """Whether a refusal was about this very object."""
        return any(known is about for known in self._about)

    def side(self, line: str) -> bool:
        """The side of a branch to go on with: true at first, then false, so that loops end."""
        first = line not in self.taken
        self.taken.append(line)
        return self._assume.get(line, first)


_current: ContextVar[Obstacles | None] = ContextVar("obstacles", default=None)


@contextlib.contextmanager
def collecting(obstacles: Obstacles) -> Iterator[Obstacles]:
    """Keep what a capture refuses, instead of raising it, while inside."""
    token = _current.set(obstacles)
    try:
        yield obstacles
    finally:
        _current.reset(token)


def collector() -> Obstacles | None:
    """Who keeps refusals now; None: they are raised."""
    return _current.get()


def refuse(error: LockstepError, about: Any = None) -> None:
    """Raise a refusal; where obstacles are collected, keep it and return: the caller goes on.

    Args:
        error: the refusal.
        about: the object it is about, for which one refusal is enough.
    """
    obstacles = collector()
    if obstacles is None:
        raise error
    obstacles.add(error, about)
