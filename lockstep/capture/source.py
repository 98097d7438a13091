"""Find the line of source that does something, to put it into an error."""

from __future__ import annotations

import ast
import inspect
import linecache
import random
import textwrap
from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

from lockstep.capture.origin import short_path

_MUTATORS = {
    "append", "extend", "insert", "pop", "remove", "clear", "update", "add", "setdefault",
    *(name for name in dir(random) if name.islower() and not name.startswith("_")),
}  # fmt: skip


def line_that_mentions(function: Any, name: str) -> str | None:
    """The "file:line" where a function first mentions a name; else where it starts."""
    for node, file, offset in nodes_of(function):
        if isinstance(node, ast.Name) and node.id == name:
            return f"{short_path(file)}:{node.lineno + offset}"
    code: CodeType | None = getattr(function, "__code__", None)
    return f"{short_path(code.co_filename)}:{code.co_firstlineno}" if code else None


def line_that_reads(functions: Iterable[Any], name: str) -> str | None:
    """The "file:line" where one of the functions reads a name, an attribute or a key.

    Constructors do not count: they run before a step does.
    """
    for function in functions:
        if getattr(function, "__name__", "") == "__init__":
            continue
        for node, file, offset in nodes_of(function):
            read = getattr(node, "attr", None) or getattr(node, "id", None)
            read = read or (node.value if isinstance(node, ast.Constant) else None)
            if read == name and not isinstance(getattr(node, "ctx", None), ast.Store):
                return f"{short_path(file)}:{node.lineno + offset}"  # type: ignore[attr-defined]
    return None


def line_that_changes(sources: Iterable[Any], name: str) -> str | None:
    """The "file:line" where one of the functions or classes changes a name or an attribute.

    Constructors do not count: they run before a step does.
    """
    for source in sources:
        for node, file, offset in nodes_of(source):
            if name in _changed_by(node):
                return f"{short_path(file)}:{node.lineno + offset}"  # type: ignore[attr-defined]
    return None


def branch_only_calls(frame: FrameType | None) -> bool:
    """Whether a frame is at an `if` whose sides only call something, as one that logs does."""
    if frame is None:
        return False
    for node, _, offset in nodes_of(frame.f_code):
        if isinstance(node, ast.If) and node.lineno + offset == frame.f_lineno:
            calls = [isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) for s in node.body]
            return all(calls) and not node.orelse
    return False


def expression_values(frame: FrameType, lineno: int) -> Iterator[tuple[str, Any]]:
    """The names, attributes and constant subscripts on a line, with their values in a frame."""
    line = linecache.getline(frame.f_code.co_filename, lineno).strip()
    try:
        tree = ast.parse(line if not line.endswith(":") else f"{line} pass")
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            try:
                yield ast.unparse(node), _value(node, frame)
            except (KeyError, AttributeError, IndexError, TypeError):
                continue


def _value(node: ast.AST, frame: FrameType) -> Any:
    """Evaluate a path such as `model.tables["x"][0]`: lookups only, no calls."""
    if isinstance(node, ast.Name):
        if node.id in frame.f_locals:
            return frame.f_locals[node.id]
        return frame.f_globals[node.id]
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        container: Any = _value(node.value, frame)
        if isinstance(container, (list, tuple, dict)):
            return container[node.slice.value]  # type: ignore[index]
    raise KeyError(ast.unparse(node))


def nodes_of(source: Any) -> Iterator[tuple[ast.AST, str, int]]:
    """The syntax nodes of a function or class, its file, and what to add to their line numbers."""
    try:
        lines, start = inspect.getsourcelines(source)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = inspect.getsourcefile(source) or ""
    except (OSError, TypeError, SyntaxError):
        return
    for node in _walk(tree):
        yield node, file, start - 1


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name == "__init__":
            continue
        yield child
        yield from _walk(child)


def _changed_by(node: ast.AST) -> set[str]:
    """The last names of what a statement assigns to, or a call mutates."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value] if node.func.attr in _MUTATORS else []
    return {name for target in targets if (name := _last_name(target))}


def _last_name(target: ast.expr) -> str | None:
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else None
