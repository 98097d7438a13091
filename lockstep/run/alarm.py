"""The alarm: loading a program must not trace, lower, compile, or start a process.

Python's audit events see imports, process starts and compiled texts whoever causes them. The hook
is added once and stays (Python has no way to take one out), and looks only at threads inside
`with alarm(...)`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lockstep import _compat
from lockstep.errors import AlarmError

_STARTS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
}
_state = threading.local()
_lock = threading.Lock()
_hooked = False


@contextmanager
def alarm(doing: str) -> Iterator[None]:
    """Raise if this thread traces, compiles, imports a compiler or starts a process inside.

    The error comes from where it happens, and once more at the end where something swallowed it.

    Args:
        doing: what the block does, for the message: "loading step.lockstep".

    Raises:
        AlarmError: LS220.

    Example:
        >>> with alarm("adding"):
        ...     1 + 1
        2
    """
    _install()
    outer = getattr(_state, "trips", None), getattr(_state, "doing", "")
    _state.trips, _state.doing = [], doing
    try:
        yield
        trips = _state.trips
    finally:
        _state.trips, _state.doing = outer
    if trips:
        raise _error(doing, trips[0])


def _install() -> None:
    global _hooked
    with _lock:
        if not _hooked:
            sys.addaudithook(_hook)
            _hooked = True


def _hook(event: str, args: tuple[Any, ...]) -> None:
    trips = getattr(_state, "trips", None)
    if trips is None:
        return
    found = _finding(event, args)
    if found is not None:
        trips.append(found)
        raise _error(_state.doing, found)


def _finding(event: str, args: tuple[Any, ...]) -> str | None:
    if event == "import":
        parts = str(args[0]).split(".")
        for package in _compat.COMPILER_PACKAGES:
            if parts[: len(package.split("."))] == package.split("."):
                return f"import of {args[0]}"
    elif event in _STARTS:
        return f"start of a process: {event} {args[0] if args else ''!s}".rstrip()
    elif event == "compile" and str(args[1]).startswith(_compat.FX_CODE_PREFIX):
        return "a traced graph's code was compiled"
    return None


def _error(doing: str, found: str) -> AlarmError:
    return AlarmError(
        f"{doing}: something was traced or compiled",
        got=found,
        want="nothing but reading bytes, and loading the shipped libraries",
        why="a rank that compiles on its own is what Lockstep exists to prevent",
        fix="report it with this text; the back end `graph` is the way on",
    )
