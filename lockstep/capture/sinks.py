"""Names that a function uses for nothing but to tell something: a writer, a bar, a callback.

What is behind them decides nothing about the program, and changes with every line that is told. So
the code and the values that a step reaches are looked for without them.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from types import CodeType, FunctionType

from lockstep.capture.binding import names_in
from lockstep.capture.source import nodes_of

# Methods that a writer of scalars or a progress bar has, and nothing else: they make it known.
TELLING = (
    "add_scalar", "add_scalars", "add_text", "add_histogram",
    "set_postfix", "set_postfix_str", "set_description", "set_description_str",
)  # fmt: skip
# What else such an object is told; other objects have methods of these names too.
ALSO = ("update", "write", "refresh", "flush", "display")
CALLED = "on_rank"


@functools.lru_cache(maxsize=4096)
def told_names(function: FunctionType) -> frozenset[str]:
    """The names that a function mentions only to tell something.

    Example:
        >>> told_names(lambda: None)
        frozenset()
    """
    if not {*TELLING, CALLED} & set(_all_names(function.__code__)):
        return frozenset()
    uses: Counter[str] = Counter()
    told: Counter[str] = Counter()
    objects = set[str]()
    calls = [node for node, _, _ in nodes_of(function) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in TELLING:
            objects.add(ast.unparse(call.func.value))
    for node, _, _ in nodes_of(function):
        uses.update(_name(node))
        if not isinstance(node, ast.Call):
            continue
        at = node.func
        if isinstance(at, ast.Attribute) and ast.unparse(at.value) in objects:
            if at.attr in (*TELLING, *ALSO):
                told.update([*_name(at), *_name(at.value)])
        elif _name(at) == [CALLED] and len(node.args) > 1:
            callback = node.args[1]
            told.update(_name(callback))
            if isinstance(callback, ast.Attribute):
                told.update(_name(callback.value))
    return frozenset(name for name, count in told.items() if uses[name] == count)


def _all_names(code: CodeType) -> list[str]:
    return [*names_in(code), *code.co_freevars, *code.co_varnames]


def _name(node: ast.AST) -> list[str]:
    """The last name of an expression: `writer` of `self.writer`; none of others."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    return [node.id] if isinstance(node, ast.Name) else []
