"""The user's source behind a "file:number", and edits of it that a fix proposes."""

from __future__ import annotations

import ast
import linecache
import sys
from pathlib import Path


def source_of(line: str) -> str:
    """The stripped source of a line; "" where the file is not found."""
    path, _, number = line.rpartition(":")
    if not number.isdigit():
        return ""
    for root in (".", *sys.path):
        file = Path(root) / path
        if file.is_file():
            return linecache.getline(str(file), int(number)).strip()
    return ""


def assigned_name(line: str) -> str | None:
    """The name that a line assigns its value to: what the user calls it."""
    try:
        tree = ast.parse(source_of(line))
    except SyntaxError:
        return None
    statement = tree.body[0] if tree.body else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, (ast.Name, ast.Attribute, ast.Subscript)):
            return ast.unparse(target)
    return None


def with_operand(line: str, name: str, wrapped: str) -> str | None:
    """A line's source with an operand replaced, as it would be pasted; None if it is not found.

    Args:
        name: what the operand is called; of a path such as "m.norm.weight" the last part counts.
        wrapped: what takes its place; "{}" in it stands for the operand as it was written.

    Example:
        >>> _replaced("h = x * self.weight", "model.norm.weight", "f({})")
        'h = x * f(self.weight)'
    """
    return _replaced(source_of(line), name, wrapped)


def _replaced(source: str, name: str, wrapped: str) -> str | None:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    last = name.rpartition(".")[2]
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            continue
        text = ast.unparse(node)
        if isinstance(node.ctx, ast.Load) and (text == name or _last(node) == last):
            whole = ast.get_source_segment(source, node) or text
            at = node.col_offset
            return source[:at] + wrapped.format(whole) + source[at + len(whole) :]
    return None


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return node.id if isinstance(node, ast.Name) else ""
