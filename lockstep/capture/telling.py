"""What a step tells by itself: print, sys.stdout, logging, a writer of scalars, a progress bar.

While a step is captured, none of it happens: each is noted as an effect, in order, with the values
it wants. What a library says without a value of the step in it is let through, once.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from lockstep.capture.emits import Emit, Emits
from lockstep.capture.files import refusing_writes
from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.named import member, name_of, objects_of
from lockstep.capture.origin import (
    is_library_file,
    is_own_file,
    is_torch_file,
    is_user_file,
    line_of,
)
from lockstep.capture.refusal import refuse
from lockstep.capture.sinks import ALSO, TELLING
from lockstep.errors import CaptureError

_LOGGING = logging.__file__
_THROUGH = ("warnings.py", "_warnings.py")


@contextlib.contextmanager
def telling(emits: Emits) -> Iterator[None]:
    """Note what user code on this thread tells while inside."""
    swaps: dict[FunctionType, Any] = {
        logging.Logger._log: _logged(emits),  # type: ignore[dict-item]
        logging.Logger.isEnabledFor: _asked_level(emits),  # type: ignore[dict-item]
        logging.basicConfig: _configured,  # type: ignore[dict-item]
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(_streams(emits))
        if not emits.quiet:
            things = objects_of(emits.step, emits.call, emits.functions)
            stack.enter_context(refusing_writes(things, emits.functions))
        stack.enter_context(swapped(swaps))
        for owner, thing in _writers(emits):
            stack.enter_context(_methods(emits, owner, thing))
        yield


# -- print and the standard streams


@contextlib.contextmanager
def _streams(emits: Emits) -> Iterator[None]:
    before = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    made = {name: _Stream(emits, name, stream) for name, stream in before.items()}
    for name, stream in made.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in made.items():
            stream.over = True
            if getattr(sys, name) is stream:
                setattr(sys, name, before[name])


class _Stream:
    """A standard stream: text of the step's is noted, any other goes through."""

    def __init__(self, emits: Emits, name: str, real: Any) -> None:
        self._emits, self._name, self._real = emits, name, real
        self._thread = threading.get_ident()
        self.over = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        frame = self._user(sys._getframe(1))
        if frame is None or _is_said_by_library(self._emits, frame, text):
            return int(self._real.write(text) or 0)
        line = line_of(frame)
        what = [self._emits.written(text, line)]
        self._emits.add(Emit("write", what, line, name=self._name))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._real.flush()

    def _user(self, frame: FrameType | None) -> FrameType | None:
        if self.over or threading.get_ident() != self._thread:
            return None
        return asking(frame)


def asking(frame: FrameType | None) -> FrameType | None:
    """The user's frame that tells something, through Python's own modules; None: another does."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return frame
        if is_own_file(file) or is_torch_file(file) or file.endswith(_THROUGH):
            return None
        frame = frame.f_back
    return None


def _is_said_by_library(emits: Emits, frame: FrameType, text: Any) -> bool:
    """Whether an installed package says something that has no value of the step in it."""
    return is_library_file(frame.f_code.co_filename) and not emits.is_late(text)


# -- logging


def _logged(emits: Emits) -> Any:
    def log(original: Any, args: Any, kwargs: Any) -> Any:
        frame, module_level = _caller_of_logging(caller_frame())
        logger, level, message, *rest = args
        values = rest[0] if rest else kwargs.get("args", ())
        if frame is None or _is_said_by_library(emits, frame, [message, values]):
            return original(*args, **kwargs)
        line = line_of(frame)
        if emits.quiet:
            return None
        if kwargs.get("exc_info") or kwargs.get("stack_info") or len(rest) > 1:
            refuse(_odd_log(line))
        if logging.getLogger(logger.name) is not logger and logger is not logging.root:
            refuse(_unnamed_logger(line, logger))
        code = frame.f_code
        name = {
            "logger": None if logger is logging.root else logger.name, "level": level,
            "module": frame.f_globals.get("__name__", ""), "lineno": frame.f_lineno,
            "function": code.co_name, "configures": module_level,
        }  # fmt: skip
        what = [emits.written(part, line) for part in (message, values, kwargs.get("extra"))]
        emits.add(Emit("logging", what, line=line, name=name))
        return None

    return log


def _asked_level(emits: Emits) -> Any:
    def enabled(original: Any, args: Any, kwargs: Any) -> Any:
        """Each rank asks for itself as the program runs, so that here every level is noted."""
        caller = caller_frame()
        if caller is None or caller.f_code.co_filename != _LOGGING:
            if caller is not None and is_user_file(caller.f_code.co_filename) and not emits.quiet:
                refuse(_level_read(line_of(caller)))
            return original(*args, **kwargs)
        frame, _ = _caller_of_logging(caller)
        if frame is None or is_library_file(frame.f_code.co_filename):
            return original(*args, **kwargs)
        return True

    return enabled


def _configured(original: Any, args: Any, kwargs: Any) -> Any:
    caller = caller_frame()
    if caller is not None and caller.f_code.co_filename == _LOGGING:
        return None  # `logging.info` does it: so does what is run later
    return original(*args, **kwargs)


def _caller_of_logging(frame: FrameType | None) -> tuple[FrameType | None, bool]:
    """The user's frame that logs, and whether it does by a function of the module itself."""
    module_level = False
    while frame is not None and frame.f_code.co_filename == _LOGGING:
        module_level = "." not in frame.f_code.co_qualname
        frame = frame.f_back
    return asking(frame), module_level


def _odd_log(line: str) -> CaptureError:
    return CaptureError(
        "the step logs an exception or a stack",
        where=line,
        why="a program that runs has neither",
        fix="log it without exc_info and stack_info",
    )


def _unnamed_logger(line: str, logger: logging.Logger) -> CaptureError:
    return CaptureError(
        f"the step logs by a logger that logging does not know: {logger.name}",
        where=line,
        why="a rank that loads the program finds a logger by its name",
        fix="logger = logging.getLogger(__name__)",
    )


def _level_read(line: str) -> CaptureError:
    return CaptureError(
        "the step asks which levels are logged",
        where=line,
        why="each rank may have another level, and one program must fit all of them",
        fix="log without asking: a rank whose level is higher drops it",
    )


# -- writers and progress bars


def _writers(emits: Emits) -> Iterator[tuple[type, Any]]:
    """The classes of objects in reach that are told something, each with one such object."""
    seen = set[type]()
    for thing in objects_of(emits.step, emits.call, emits.functions):
        kind = type(thing)
        if kind not in seen and any(callable(getattr(kind, name, None)) for name in TELLING):
            seen.add(kind)
            yield kind, thing


@contextlib.contextmanager
def _methods(emits: Emits, kind: type, _thing: Any) -> Iterator[None]:
    own: dict[str, Any] = {}
    for name in (*TELLING, *ALSO):
        if callable(getattr(kind, name, None)):
            own[name] = vars(kind).get(name)
            setattr(kind, name, _told(emits, name, getattr(kind, name)))
    try:
        yield
    finally:
        for name, before in own.items():
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)


def _told(emits: Emits, name: str, original: Any) -> Any:
    thread = threading.get_ident()

    def tell(self: Any, *args: Any, **kwargs: Any) -> Any:
        frame = asking(sys._getframe(1)) if threading.get_ident() == thread else None
        if frame is None:
            return original(self, *args, **kwargs)
        if emits.quiet:
            return None
        line = line_of(frame)
        path = name_of(emits.step, emits.call, self, line, emits.functions)
        what = [emits.written(args, line), emits.written(kwargs, line)]
        emits.add(Emit("method", what, line=line, name=member(path, name)))
        return None

    return tell
