"""`"loss %.3f" % loss.item()`: C asks the value for a number, and writes it into text by itself.

It gets a number that no step computes, by which its text is found again in what is told. The format
is read from the source: the very operation that asks is looked up there.
"""

from __future__ import annotations

import ast
import functools
import linecache
import math
import re
from types import FrameType
from typing import Any

_FORMAT = re.compile(r"%[#0\- +]*\d*(?:\.\d+)?[hlL]?[diouxXeEfFgGcrsa%]")
_FIRST = 60  # exponents from here on: `%e` and `%g` show them, whatever digits they leave out


class Percents:
    """The numbers that one trace has given out for `%`, and the formats that it has met."""

    def __init__(self, samples: bool) -> None:
        self._samples = samples
        self._formats: list[list[str]] = []
        self._given: list[Any] = []  # what each number stands for

    def number(self, shown: Any, frame: FrameType | None, whole: bool) -> float | int | None:
        """Return the number for a value that is asked for one; None: it is not by `%`.

        Args:
            shown: what is kept for the value.
            whole: whether an int is asked for.
        """
        template = _template(frame)
        if template is None:
            return None
        parts = _parts(template)
        if parts is None:
            return None
        if parts not in self._formats:
            self._formats.append(parts)
        self._given.append(shown)
        if self._samples:
            return 0 if whole else math.nan
        return _numbers(len(self._given) - 1)[whole]

    def split(self, text: str) -> list[Any]:
        """A text in pieces: str, and (what is kept, its format) for each number that was given."""
        if not self._given:
            return [text]
        for parts in self._formats:
            pattern = "".join(
                re.escape(part) if at % 2 == 0 else self._any_of(part)
                for at, part in enumerate(parts)
            )
            for found in re.finditer(pattern, text, re.DOTALL):
                pieces = self._pieces(parts, found)
                if pieces is not None:
                    before, after = text[: found.start()], text[found.end() :]
                    return [*self.split(before), *pieces, *self.split(after)]
        return [text]

    def _pieces(self, parts: list[str], found: re.Match[str]) -> list[Any] | None:
        pieces: list[Any] = []
        known = False
        for at, literal in enumerate(parts[::2]):
            pieces.append(literal)
            if at < len(found.groups()):
                form, written = parts[2 * at + 1], found.group(at + 1)
                shown = self._behind(form, written)
                known = known or shown is not None
                pieces.append(written if shown is None else (shown, form))
        return pieces if known else None

    def _any_of(self, form: str) -> str:
        """What finds one of the given numbers in a format, else anything."""
        written = [_formatted(form, n) for at in range(len(self._given)) for n in _numbers(at)]
        longest_first = sorted(filter(None, written), key=len, reverse=True)
        return f"({'|'.join([*map(re.escape, longest_first), '.*?'])})"

    def _behind(self, form: str, written: str) -> Any:
        for at, shown in enumerate(self._given):
            if written and written in [_formatted(form, number) for number in _numbers(at)]:
                return shown
        return None


def _numbers(at: int) -> tuple[float, int]:
    """What is given out for a float and for an int, as the n-th of a trace."""
    return 1.2345678 * 10.0 ** (_FIRST + at), 10 ** (_FIRST + at)


def _formatted(form: str, number: Any) -> str | None:
    try:
        return form % number
    except (TypeError, ValueError, OverflowError):
        return None


def _parts(template: str) -> list[str] | None:
    """Literals and formats in turn; None where a format names a key or takes its width along."""
    parts, at = [""], 0
    for found in _FORMAT.finditer(template):
        parts[-1] += template[at : found.start()]
        at = found.end()
        if found[0] == "%%":
            parts[-1] += "%"
        else:
            parts += [found[0], ""]
    parts[-1] += template[at:]
    return None if any("%(" in p or "%*" in p for p in parts[::2]) else parts


def _template(frame: FrameType | None) -> str | None:
    """The text on the left of the `%` that a frame is at; None where it is at none."""
    if frame is None:
        return None
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return _templates(frame.f_code.co_filename).get(positions)


@functools.lru_cache(maxsize=256)
def _templates(filename: str) -> dict[tuple[int | None, ...], str]:
    """Every `"..." % ...` of a file, by where it is."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return {}
    return {
        (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset): node.left.value
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(node.left, ast.Constant)
        and isinstance(node.left.value, str)
    }
