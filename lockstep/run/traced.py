"""With LOCKSTEP_TRACE_CALLS=1: where in its program a rank is, written down at each collective.

A small file beside the journal is written over at the start and at the end of each collective, so
that it can be read while the job hangs and after it was killed: `lockstep explain-hang`. Where the
variable is not set, programs are as they are.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep import _compat
from lockstep.run.session import session

VARIABLE, SUFFIX = "LOCKSTEP_TRACE_CALLS", ".calls"
_NAME = "lockstep_traced"  # what a program's text finds our stand-in by
_SIZE = 400  # bytes of a record


def wanted() -> bool:
    """Whether calls are to be written down in this process."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def traced_text(text: str) -> str:
    """A program's text whose collectives go through the stand-in that `scope` gives."""
    return text.replace(_compat.COLLECTIVE_CALLS, f"{_NAME}.")


def scope() -> dict[str, Any]:
    """The name that a traced text needs besides its own."""
    return {_NAME: _Ops(_compat.functional_collectives())}


class Record:
    """One rank's file: which program it is in, its how manyeth call of any, and how far it is.

    Args:
        path: the file.
        rank: of this process.
    """

    def __init__(self, path: Path, rank: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._static = {"rank": rank, "pid": os.getpid(), "host": socket.gethostname()}
        self.program, self.call, self.began, self.ended = "", 0, 0, 0

    def enter(self, program: str) -> None:
        """A program begins."""
        self.program, self.call, self.began, self.ended = program, self.call + 1, 0, 0
        self.write()

    def write(self) -> None:
        """Write all of it over what was there, in one call."""
        at = {"program": self.program, "call": self.call, "began": self.began, "ended": self.ended}
        os.pwrite(self._fd, json.dumps({**self._static, **at}).ljust(_SIZE).encode(), 0)


_record: Record | None = None


def record() -> Record:
    """This process' record, in the run's folder."""
    global _record
    if _record is None:
        here = session()
        _record = Record(here.folder / f"rank-{here.rank:05d}{SUFFIX}", here.rank)
    return _record


def told(program: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A loaded program whose every call is written down, where that is asked for."""
    if not wanted():
        return program

    def call(inputs: list[Any]) -> Any:
        record().enter(name)
        return program(inputs)

    return call


class _Ops:
    """Stands for the namespace of collectives: `all_reduce.default(...)` is written down."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        made = _Op(getattr(self._ops, name), name == "wait_tensor")
        setattr(self, name, made)
        return made


class _Op:
    """Stands for one operator, each overload of it."""

    def __init__(self, packet: Any, waits: bool) -> None:
        self._packet, self._waits = packet, waits

    def __getattr__(self, overload: str) -> Callable[..., Any]:
        op, waits = getattr(self._packet, overload), self._waits

        def call(*args: Any, **kwargs: Any) -> Any:
            at = record()
            if waits:
                result = op(*args, **kwargs)
                at.ended += 1
                at.write()
                return result
            at.began += 1
            at.write()
            return op(*args, **kwargs)

        setattr(self, overload, call)
        return call
