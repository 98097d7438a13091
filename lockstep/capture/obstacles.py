"""Turn what stopped a trace into an error at the user's own line that says what to do instead."""

from __future__ import annotations

import ast
import inspect
import random as _random
import textwrap
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.origin import is_user_file, line_of, short_path
from lockstep.errors import CaptureError, LockstepError


def explain(error: BaseException) -> LockstepError | None:
    """The capture error behind what a trace raised; None when it is the user's own error.

    Args:
        error: as caught around the trace, with its traceback.
    """
    if isinstance(error, LockstepError):
        return error
    frame, lineno = _innermost_user(error.__traceback__)
    where = _where(frame, lineno)
    text = str(error)
    if isinstance(error, _compat.capture_errors()) or "data-dependent" in text:
        return _value_read(where, frame, lineno)
    if "convert all Tensors to FakeTensors" in text or "non-fake" in text.lower():
        return _real_tensor(where, frame)
    return None


def _value_read(where: str | None, frame: FrameType | None, lineno: int) -> CaptureError:
    line = _source_line(frame, lineno)
    return CaptureError(
        "the step looks at a tensor's value while it is captured",
        where=f"{where}: {line}" if line else where,
        why="the value differs between calls and ranks, and one program must fit all of them",
        fix=[
            "compute both sides and choose with torch.where(condition, a, b)",
            "return the tensor, and look at it outside the step",
        ],
    )


def _real_tensor(where: str | None, frame: FrameType | None) -> CaptureError:
    name, tensor = next(_real_tensors(frame), (None, None))
    what = f"the step uses the tensor {name}" if name else "the step uses a tensor"
    got = None
    if isinstance(tensor, torch.Tensor):
        from lockstep.capture.binding import describe

        got = f"{describe(tensor)}, neither an argument nor part of a module that the step reaches"
    return CaptureError(
        f"{what} that is not one of its inputs",
        where=where,
        got=got,
        why="its value would be frozen into the program of every rank",
        fix=["pass it as an argument", "register_buffer(...) it on a module of the model"],
    )


def _real_tensors(frame: FrameType | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Real tensors in sight of the frame that failed: locals, closures, globals, self's attributes."""
    if frame is None:
        return
    mentioned = (
        set(frame.f_code.co_names) | set(frame.f_code.co_varnames) | set(frame.f_code.co_freevars)
    )
    spaces: list[tuple[str, dict[str, Any]]] = [("", dict(frame.f_locals)), ("", frame.f_globals)]
    if "self" in frame.f_locals and hasattr(frame.f_locals["self"], "__dict__"):
        spaces.append(("self.", vars(frame.f_locals["self"])))
    for prefix, space in spaces:
        for name in sorted(mentioned & space.keys()):
            for label, value in _flat(prefix + name, space[name]):
                if isinstance(value, torch.Tensor) and not _compat.is_fake(value):
                    yield label, value


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, dict):
        yield from ((f"{name}[{k!r}]", v) for k, v in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{name}[{i}]", v) for i, v in enumerate(value))


def _innermost_user(traceback: TracebackType | None) -> tuple[FrameType | None, int]:
    found: tuple[FrameType | None, int] = (None, 0)
    while traceback is not None:
        if is_user_file(traceback.tb_frame.f_code.co_filename):
            found = traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
    return found


def _where(frame: FrameType | None, lineno: int) -> str | None:
    if frame is None:
        return None
    return f"{short_path(frame.f_code.co_filename)}:{lineno}"


def _source_line(frame: FrameType | None, lineno: int) -> str:
    import linecache

    return linecache.getline(frame.f_code.co_filename, lineno).strip() if frame else ""


def line_that_mentions(function: Any, name: str) -> str | None:
    """The "file:line" where a function first mentions a name."""
    for node, file, offset in _nodes(function):
        if isinstance(node, ast.Name) and node.id == name:
            return f"{short_path(file)}:{node.lineno + offset}"
    return _start_of(function)


def line_that_changes(owner: Any, name: str, fallback: Any) -> str | None:
    """The "file:line" where a class or function assigns to, or mutates, a name or attribute."""
    for source in (owner, fallback):
        for node, file, offset in _nodes(source):
            if name in _changed_by(node):
                return f"{short_path(file)}:{node.lineno + offset}"  # type: ignore[attr-defined]
    return _start_of(fallback)


_MUTATORS = ("append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault")


def _changed_by(node: ast.AST) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _MUTATORS or node.func.attr in dir(_random):
            targets = [node.func.value]
    names = set()
    for target in targets:
        inner = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(inner, ast.Attribute):
            names.add(inner.attr)
        elif isinstance(inner, ast.Name):
            names.add(inner.id)
    return names


def _nodes(owner: Any) -> Iterator[tuple[ast.AST, str, int]]:
    try:
        lines, start = inspect.getsourcelines(owner)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = inspect.getsourcefile(owner) or ""
    except (OSError, TypeError, SyntaxError):
        return
    for node in ast.walk(tree):
        yield node, file, start - 1


def _start_of(function: Any) -> str | None:
    code: CodeType | None = getattr(function, "__code__", None)
    return f"{short_path(code.co_filename)}:{code.co_firstlineno}" if code else None


__all__ = ["explain", "line_of", "line_that_changes", "line_that_mentions"]
