"""Turn what stopped a trace into an error at the user's own line that says what to do instead."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from types import FrameType, TracebackType

import torch

from lockstep import _compat
from lockstep.capture.binding import describe
from lockstep.capture.devices import mixed
from lockstep.capture.libraries import ways
from lockstep.capture.origin import is_user_file, short_path
from lockstep.capture.source import expression_values
from lockstep.capture.stricter import stricter_rule
from lockstep.errors import CaptureError, LockstepError, first_line


def explain(error: BaseException) -> LockstepError | None:
    """The capture error behind what a trace raised; None when it is the user's own error.

    Args:
        error: as caught around the trace, with its traceback.
    """
    if isinstance(error, LockstepError):
        return error
    frame, lineno = _innermost_user(error.__traceback__)
    second = mixed(error, _where(frame, lineno))
    if second is not None:
        return second
    if is_value_read(error):
        return value_read(frame, lineno)
    if is_outside_tensor(error):
        return real_tensor(frame, lineno)
    if "backward() through example input" in str(error):
        return CaptureError(
            "the step's backward leaves through an argument that was computed before",
            where=_where(frame, lineno),
            why="what computed it is not part of the program, and would get no gradient",
            fix=["compute it inside the step", "pass it as x.detach()"],
        )
    if "dynamo-optimized function" in str(error):
        return CaptureError(
            "the step calls something that torch.compile made",
            where=_where(frame, lineno),
            why="a program is compiled once, as a whole",
            fix="pass the plain module: leave torch.compile out, or take its ._orig_mod",
        )
    operator = stricter_rule(error)
    return no_rule(operator, error, frame, lineno) if operator is not None else None


def say_captured(error: BaseException) -> None:
    """Say with a user's error where it rose, since it may be about the stand-ins and not the step.

    Args:
        error: as caught around the trace; it gets a note.
    """
    line = line_of_error(error)
    error.add_note(
        f"lockstep: raised while the step was captured, on tensors without values"
        f"{f', at {line}' if line else ''}; LOCKSTEP=off runs the same script eagerly"
    )


def line_of_error(error: BaseException) -> str | None:
    """The user's innermost "file:line" that an exception went through."""
    return _where(*_innermost_user(error.__traceback__))


def is_value_read(error: BaseException) -> bool:
    """Whether torch stopped because a tensor's value was asked for."""
    return isinstance(error, _compat.capture_errors()) or "data-dependent" in str(error)


def is_outside_tensor(error: BaseException) -> bool:
    """Whether torch stopped because a tensor is none of the capture's own."""
    words = str(error)
    return "convert all Tensors to FakeTensors" in words or "Mixing fake modes" in words


def value_read(frame: FrameType | None, lineno: int) -> CaptureError:
    """The error for a Python decision on a tensor's value."""
    line = _line(frame, lineno)
    return CaptureError(
        "the step looks at a tensor's value while it is captured",
        where=_where(frame, lineno),
        got=line,
        why="the value differs between calls and ranks, and one program must fit all of them",
        fix=[
            *ways(_where(frame, lineno), line),
            "compute both sides and choose with torch.where(condition, a, b)",
            "return the tensor, and look at it outside the step",
            "to tell of it: ls.on_rank(0, callback, tensor), whose callback may look at it",
        ],
    )


def real_tensor(
    frame: FrameType | None, lineno: int, known: torch.Tensor | None = None
) -> CaptureError:
    """The error for a tensor from outside: `known`, else the first that the line mentions."""
    mentioned = list(_real_tensors(frame, lineno))
    named = [pair for pair in mentioned if known is None or pair[1] is known]
    name, tensor = next(iter(named), (None, known))
    got = None
    if tensor is not None:
        got = f"{describe(tensor)}, neither an argument nor part of a module that the step reaches"
    return CaptureError(
        f"the step uses {name or 'a tensor'}, a tensor that is not one of its inputs",
        where=_where(frame, lineno),
        got=got,
        why="its value would be frozen into the program of every rank",
        fix=[
            *ways(_where(frame, lineno), _line(frame, lineno)),
            "pass it as an argument",
            "register_buffer(...) it on a module of the model",
        ],
    )


def no_rule(
    operator: str, error: BaseException, frame: FrameType | None, lineno: int
) -> CaptureError:
    """The error for an operator that computes what torch's rule for its shapes refuses."""
    return CaptureError(
        f"torch's rule for the shapes of {operator} refuses what the operator computes",
        where=_where(frame, lineno),
        got=first_line(error),
        why="a step is captured on tensors without values, for which the rule stands",
        fix=[
            *ways(_where(frame, lineno), _line(frame, lineno)),
            "give it the dtype that the rule asks for, or call another operator there",
        ],
    )


def _real_tensors(frame: FrameType | None, lineno: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The real tensors that a line mentions, by what it calls them."""
    if frame is None:
        return
    for name, value in expression_values(frame, lineno):
        if not isinstance(value, torch.Tensor):
            continue
        if not _compat.is_fake(value) or _compat.is_of_set_up(value):
            yield name, value


def _innermost_user(traceback: TracebackType | None) -> tuple[FrameType | None, int]:
    found: tuple[FrameType | None, int] = (None, 0)
    while traceback is not None:
        if is_user_file(traceback.tb_frame.f_code.co_filename):
            found = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def _line(frame: FrameType | None, lineno: int) -> str:
    """The text of a frame's line."""
    return linecache.getline(frame.f_code.co_filename, lineno).strip() if frame else ""


def _where(frame: FrameType | None, lineno: int) -> str | None:
    if frame is None:
        return None
    return f"{short_path(frame.f_code.co_filename)}:{lineno}"
