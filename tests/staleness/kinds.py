"""Why a change may miss although the captured graph is the same: the kinds that are no fault.

Code is told by its text, so a change of text that comes to the same is another program to a store.
A kind is found from what ran and from what the changed piece is part of, never from a name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.staleness.mutate import Mutant


@dataclass
class Ran:
    """The lines of a program's modules that ran while it was built and captured."""

    names: frozenset[str]
    lines: set[tuple[str, int]] = field(default_factory=set)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note lines while inside."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if Path(frame.f_code.co_filename).stem in self.names else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines.add((Path(frame.f_code.co_filename).stem, frame.f_lineno))
        return self._line


def kind_of(mutant: Mutant, ran: Ran, text: str) -> str:
    """Why a mutant that leaves the graph as it is may miss; "other" where no reason is known."""
    if mutant.role == "message":
        return "message text"
    if not _statement(text, mutant.line) & {n for m, n in ran.lines if m == mutant.module}:
        return "dead branch"
    if mutant.kind == "default":
        return "unused default"
    if mutant.role == "test":
        return "test with the same outcome"
    return "other"


def _statement(text: str, line: int) -> set[int]:
    """The lines of the smallest statement that a line belongs to."""
    found: tuple[int, int] | None = None
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            span = (first, _head_end(node))
            if span[0] <= line <= span[1] and (found is None or span > found):
                found = span
    return set(range(found[0], found[1] + 1)) if found else {line}


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement, without the block below it."""
    body = getattr(node, "body", None)
    end = node.end_lineno or node.lineno
    return max(node.lineno, body[0].lineno - 1) if body else end
