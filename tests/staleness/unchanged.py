"""Texts that say the same: comments, docstrings, blank lines, line breaks, another file's name."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator


def rewritings(text: str) -> Iterator[tuple[str, str]]:
    """Yield (what was done, another text for the same program)."""
    yield "comments", _commented(text)
    yield "no comments", _uncommented(text)
    yield "docstrings", _documented(text)
    yield "blank lines", "\n\n" + text.replace("\n\n", "\n\n\n")
    yield "written anew", ast.unparse(ast.parse(text)) + "\n"
    yield "a trailing blank", text.replace(":\n", ":  \n")


def _commented(text: str) -> str:
    lines = text.splitlines()
    return "\n".join(f"{line}  # so" if line.endswith(")") else line for line in lines) + "\n"


def _uncommented(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return tokenize.untokenize(t for t in tokens if t.type != tokenize.COMMENT)


def _documented(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body.pop(0)
            node.body.insert(0, ast.Expr(ast.Constant(f"Other words for {node.name}.")))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
