"""Where `lockstep.parallel` calls a typed collective, found in its syntax; each can be left out.

What stands in for a call keeps the shapes and communicates nothing: an all-reduce or a conversion
leaves its tensor, an all-gather repeats its own part, a reduce-scatter takes its own slice, an
all-to-all takes as many of its own rows as it would get.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

import lockstep.parallel
from lockstep.spmd.mesh import axis as axis_named

FOLDER = Path(lockstep.parallel.__file__).parent
VERBS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "convert")
STAND_IN = "_left_out"


@dataclass(frozen=True)
class Site:
    """One call.

    Args:
        module: its name.
        verb: the collective's.
        line, column: where the call begins.
        ends: the line where it ends.
        first, last: the lines of the function that holds it.
    """

    module: str
    verb: str
    line: int
    column: int
    ends: int
    first: int
    last: int

    @property
    def file(self) -> str:
        """As lines name it."""
        return self.module.replace(".", "/") + ".py"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def holds(self, line: str) -> str:
        """How near a "file:number" is: "line", "function" or nothing."""
        file, _, number = line.rpartition(":")
        if file != self.file or not number.isdigit():
            return ""
        if self.line <= int(number) <= self.ends:
            return "line"
        return "function" if self.first <= int(number) <= self.last else ""


def sites() -> list[Site]:
    """Every call of a typed collective in the package."""
    found = []
    for path in sorted(FOLDER.glob("*.py")):
        module = f"lockstep.parallel.{path.stem}"
        tree = ast.parse(path.read_text())
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            for call in _calls(function):
                ends = call.end_lineno or call.lineno
                lines = function.lineno, function.end_lineno or function.lineno
                found.append(
                    Site(module, call.func.id, call.lineno, call.col_offset, ends, *lines)  # type: ignore[attr-defined]
                )
    return found


def _calls(function: ast.FunctionDef) -> list[ast.Call]:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in VERBS]


@contextlib.contextmanager
def without(site: Site) -> Iterator[None]:
    """Run the package without one call while inside: the code of its function is another."""
    module = importlib.import_module(site.module)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    (call,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (node.lineno, node.col_offset) == (site.line, site.column)
        and isinstance(node.func, ast.Name) and node.func.id == site.verb
    ]  # fmt: skip
    call.args.insert(0, ast.copy_location(ast.Constant(site.verb), call))
    call.func = ast.copy_location(ast.Name(STAND_IN, ast.Load()), call.func)
    code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
    function = next(f for f in _functions(module) if f.__code__.co_firstlineno == _first(f, site))
    (other,) = [c for c in _codes(code) if _same(c, function.__code__)]
    original = function.__code__
    function.__globals__[STAND_IN] = left_out
    function.__code__ = other
    try:
        yield
    finally:
        function.__code__ = original
        del function.__globals__[STAND_IN]


def _first(function: FunctionType, site: Site) -> int:
    """The function's first line where the site lies within it, else none."""
    lines = [line for _, _, line in function.__code__.co_lines() if line is not None]
    inside = min(lines) <= site.line <= max(lines)
    return function.__code__.co_firstlineno if inside else -1


def _same(one: CodeType, other: CodeType) -> bool:
    return (one.co_name, one.co_firstlineno) == (other.co_name, other.co_firstlineno)


def _functions(module: Any) -> Iterator[FunctionType]:
    """All functions and methods that a module defines."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for held in [value, *(vars(value).values() if isinstance(value, type) else ())]:
            held = getattr(held, "__func__", held)
            held = getattr(held, "__wrapped__", held)
            if isinstance(held, FunctionType) and held.__code__.co_filename == module.__file__:
                yield held


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def left_out(verb: str, x: torch.Tensor, axis: str, **words: Any) -> torch.Tensor:
    """What a call gives that does not communicate."""
    over, dst = axis_named(axis), words["dst"]
    if verb == "all_gather":
        dim = words["src"].dim or 0
        return torch.cat([x] * over.size, dim)
    if verb == "reduce_scatter":
        dim = dst.dim or 0
        return x.chunk(over.size, dim)[over.group.rank()]
    if verb == "all_to_all" and "output_splits" in words:
        wanted = sum(words["output_splits"])
        return x[torch.arange(wanted) % len(x)]
    return x.view_as(x)
