"""Other ways to say one line of source, as a repair may need it: text in, texts out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

Span = tuple[int, int]
_FLIPS = (("dst=R", "dst=I"), ("dst=I", "dst=R"), ('"R"', '"I"'), ('"I"', '"R"'))
_REDUCTIONS = ("all_reduce", "reduce_scatter")


def variants(source: str, axis: str) -> Iterator[str]:
    """Other ways to say a line, the cheapest in communication first.

    A reduction moved to one of the operands of what it reduces; another destination of a
    collective; an operand converted or reduced along `axis`.

    Example:
        >>> next(variants('y = all_reduce(p + b, "tp")', "tp"))
        'y = (all_reduce(p, "tp") + b)'
    """
    source = source.split("  #")[0].strip()
    tree = parsed(source)
    if tree is None:
        return
    yield from _moved(source, tree)
    yield from (source.replace(old, new) for old, new in _FLIPS if old in source)
    wraps = (
        f'ls.convert({{}}, "{axis}", src=I, dst=R)',
        f'ls.all_reduce({{}}, "{axis}", src=P, dst=I)',
        f'ls.convert({{}}, "{axis}", src=I, dst=P)',
    )
    for wrap in wraps:
        for start, end in operands(tree):
            yield source[:start] + wrap.format(source[start:end]) + source[end:]


def parsed(source: str) -> ast.AST | None:
    """A line as a tree; None where it is no statement of its own."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


def operands(tree: ast.AST) -> list[Span]:
    """Where the values on a line are that it reads: names, attributes and items, the widest."""
    called: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called |= {id(node.func), id(getattr(node.func, "value", None))}
    found = []
    for node in ast.walk(tree):
        reads = isinstance(node, (ast.Subscript, ast.Name, ast.Attribute))
        if reads and id(node) not in called and isinstance(getattr(node, "ctx", None), ast.Load):
            found.append(_span(node))
    return sorted({own for own in found if not any(_inside(own, other) for other in found)})


def _moved(source: str, tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        reduced = node.args[0]
        if name not in _REDUCTIONS or not isinstance(reduced, (ast.BinOp, ast.Call)):
            continue
        (start, end), (first, last) = _span(node), _span(reduced)
        for left, right in operands(reduced):
            moved = source[start:first] + source[left:right] + source[last:end]
            inner = source[first:left] + moved + source[right:last]
            inner = f"({inner})" if isinstance(reduced, ast.BinOp) else inner
            yield source[:start] + inner + source[end:]


def _span(node: Any) -> Span:
    return node.col_offset, node.end_col_offset


def _inside(own: Span, other: Span) -> bool:
    return own != other and other[0] <= own[0] and own[1] <= other[1]
