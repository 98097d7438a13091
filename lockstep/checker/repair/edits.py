"""A line of the user's code changed for as long as it takes to try it out; no file is written.

The file's source is compiled with the line replaced, and every live function that the line belongs
to gets the new code: what runs is what the user would have pasted.
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from lockstep.checker.source import full_path
from lockstep.spmd import types

# What a fix may name that the user's file does not import yet.
_NAMES = {name: getattr(types, name) for name in "RIVPS"}


@dataclass(frozen=True)
class Edit:
    """One line of a file, replaced.

    Args:
        line: "file:number", as origins have it.
        text: the new line without its indentation; several lines are one statement each.
    """

    line: str
    text: str


class CannotEdit(Exception):
    """The line is in no function that lives, or the text is no Python."""


@contextlib.contextmanager
def applied(*edits: Edit) -> Iterator[None]:
    """Run the user's functions with lines replaced while inside.

    Raises:
        CannotEdit: a line is in no function that lives, or a text does not fit there.
    """
    pairs: dict[int, tuple[FunctionType, CodeType]] = {}
    files: dict[str, dict[int, str]] = {}
    for edit in edits:
        path, _, number = edit.line.rpartition(":")
        files.setdefault(str(Path(full_path(path)).absolute()), {})[int(number)] = edit.text
    for path, texts in files.items():
        code = _compiled(path, texts)
        for at in texts:
            found = [(f, new) for new in _codes_at(code, at) for f in _living(path, new)]
            if not found:
                raise CannotEdit(f"no function holds line {at} of {path}")
            pairs.update((id(function), (function, new)) for function, new in found)
    saved = [(function, function.__code__) for function, _ in pairs.values()]
    added: list[tuple[dict[str, Any], str]] = []
    try:
        for function, new in pairs.values():
            function.__code__ = new
            _add_names(function.__globals__, added)
        yield
    finally:
        for function, old in saved:
            function.__code__ = old
        for namespace, name in added:
            namespace.pop(name, None)


def _compiled(path: str, texts: dict[int, str]) -> CodeType:
    lines = list(linecache.getlines(path))
    for number, text in texts.items():
        if not 0 < number <= len(lines):
            raise CannotEdit(f"{path} has no line {number}")
        old = lines[number - 1]
        indent = old[: len(old) - len(old.lstrip())]
        # One line stays one line, so that the others keep their numbers.
        lines[number - 1] = f"{indent}{'; '.join(text.splitlines())}\n"
    try:
        return compile("".join(lines), path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise CannotEdit(str(error)) from error


def _codes_at(code: CodeType, number: int) -> list[CodeType]:
    """The code objects around a line, innermost first."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found = _codes_at(constant, number)
            if found:
                return [*found, code]
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return [code] if number in lines else []


def _living(path: str, code: CodeType) -> list[FunctionType]:
    """The functions that run an earlier compilation of a code object."""
    return [
        found
        for found in gc.get_objects()
        if type(found) is FunctionType
        and found.__code__.co_qualname == code.co_qualname
        and found.__code__.co_firstlineno == code.co_firstlineno
        and found.__code__.co_freevars == code.co_freevars
        and str(Path(found.__code__.co_filename).absolute()) == path
    ]


def _add_names(namespace: dict[str, Any], added: list[tuple[dict[str, Any], str]]) -> None:
    door = sys.modules["lockstep"]  # what a user's file imports as ls
    for name, value in {"ls": door, **_NAMES}.items():
        if name not in namespace:
            namespace[name] = value
            added.append((namespace, name))
