"""The user's source behind a "file:number"."""

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
