"""Why a change may miss although the captured graph is the same: the kinds that are no fault.

Code is told by its text, so a change of text that comes to the same is another program to a store.
A kind is found from what ran and from what the changed piece is part of, never from a name.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.staleness.mutate import Mutant

Row = tuple[str, Any, Any]  # a field, its value before, and after


MARK = "__ran__"


@dataclass
class Ran:
    """The lines of a program's modules that ran while its step was captured."""

    lines: set[tuple[str, int]] = field(default_factory=set)
    _on: bool = False

    def marked(self, module: str, text: str) -> str:
        """A module's text with a call before each statement of a function, which notes its line."""
        tree = ast.parse(text)
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            _mark(function.body, module)
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n"

    @contextmanager
    def present(self) -> Iterator[None]:
        """Let marked texts run while inside; nothing that a step reaches holds the notes."""
        setattr(builtins, MARK, self._note)
        try:
            yield
        finally:
            delattr(builtins, MARK)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note lines while inside."""
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def _note(self, module: str, line: int) -> None:
        if self._on:
            self.lines.add((module, line))


def _mark(body: list[ast.stmt], module: str) -> None:
    for at in range(len(body) - 1, -1, -1):
        statement = body[at]
        if not isinstance(statement, ast.FunctionDef):
            for name in ("body", "orelse", "finalbody"):
                _mark(getattr(statement, name, None) or [], module)
        note = ast.parse(f"{MARK}({module!r}, {statement.lineno})").body[0]
        body.insert(at, note)


def kind_of(mutant: Mutant, ran: Ran, text: str, rows: list[Row]) -> str:
    """Why a mutant that leaves the graph as it is may miss; "other" where no reason is known.

    Args:
        ran: what ran while the step was captured.
        rows: the fields that differ.
    """
    code = [name for name, _, _ in rows if name.startswith("source ")]
    here = _statement(text, mutant.line) & {n for m, n in ran.lines if m == mutant.module}
    if mutant.role == "message":
        return "message text"
    if mutant.kind == "default":
        return "unused default"
    if code and not here:
        return "code that did not run"
    if here and mutant.role == "test":
        return "test with the same outcome"
    if here and code:
        return f"running code that comes to the same ({mutant.kind})"
    if rows and all(_in_part(one, other) for _, one, other in rows):
        return "unused part of a table or an object"
    held = [name.rpartition(":")[2] for name, _, _ in rows if name.startswith("value ")]
    if len(held) == len(rows) and not here and not any(_ran(text, n, mutant, ran) for n in held):
        return "value that only code that did not run reads"
    shadowed = [name for name, _, _ in rows if name.startswith("value ") and ":" in name]
    return "shadowed attribute" if len(shadowed) == len(rows) == 1 and mutant.where else "other"


def _ran(text: str, name: str, mutant: Mutant, ran: Ran) -> bool:
    """Whether a line that reads a global of this name ran."""
    lines = {n for m, n in ran.lines if m == mutant.module}
    reads = [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return not reads or any(_statement(text, line) & lines for line in reads)


def _in_part(one: Any, other: Any) -> bool:
    """Whether two values are containers, so that a part of them may be one that nothing reads."""
    return isinstance(one, (dict, list)) and isinstance(other, (dict, list))


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
