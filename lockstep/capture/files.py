"""Writes to files while a step is captured: refused, since a program that runs does not write.

A trace would write once, or several times, and no rank ever again.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from lockstep.capture.origin import is_library_file, is_user_file, line_of, short_path
from lockstep.capture.refusal import refuse
from lockstep.capture.source import nodes_of
from lockstep.errors import CaptureError

_WRITES = ("write", "writelines", "writerow", "writerows", "dump")


@contextlib.contextmanager
def refusing_writes(objects: Iterable[Any], functions: Iterable[Any]) -> Iterator[None]:
    """Refuse, while inside, what user code writes to a file that it opens or holds.

    Args:
        objects: those that the step reaches by name; open files among them are looked at.
        functions: the user's, to find the line that writes.
    """
    files = {id(f): f for f in objects if issubclass(type(f), io.IOBase) and _place(f) is not None}
    before = {key: _place(file) for key, file in files.items()}
    originals = builtins.open, io.open
    builtins.open = io.open = _opening(originals[0])
    try:
        yield
    finally:
        builtins.open, io.open = originals
    for key, file in files.items():
        if _place(file) != before[key]:
            refuse(_error(_line_that_writes(functions), str(getattr(file, "name", "a file"))))


def _place(file: Any) -> int | None:
    """Where an open file is; None where it has no place, as a terminal has none."""
    try:
        return int(file.tell()) if file.writable() and file.seekable() else None
    except (OSError, ValueError):
        return None


def _opening(original: Any) -> Any:
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.endswith("pathlib.py"):
            frame = frame.f_back
        name = frame.f_code.co_filename
        if set(mode) & set("wax+") and is_user_file(name) and not is_library_file(name):
            refuse(_error(line_of(frame), str(file)))
        return original(file, mode, *args, **kwargs)

    return opened


def _line_that_writes(functions: Iterable[Any]) -> str | None:
    for function in functions:
        for node, file, offset in nodes_of(function):
            if not isinstance(node, ast.Call):
                continue
            method = isinstance(node.func, ast.Attribute) and node.func.attr in _WRITES
            if method or any(word.arg == "file" for word in node.keywords):
                return f"{short_path(file)}:{node.lineno + offset}"
    return None


def _error(line: str | None, name: str) -> CaptureError:
    return CaptureError(
        "the step writes to a file",
        where=line,
        got=name,
        why="a program does not run its Python again: it would be written once, then never",
        fix=[
            "ls.on_rank(0, callback, loss), whose callback writes the file",
            "return what is written, and write it outside the step",
        ],
    )
