"""The names that a piece of code mentions: what it reads, calls and imports, without running it."""

from __future__ import annotations

import ast
import dis
import functools
from dataclasses import dataclass, field
from types import CodeType, FunctionType

from lockstep.capture.binding import globals_in, instructions_of, names_in
from lockstep.capture.source import nodes_of

_METHOD = ("LOAD_METHOD", "LOAD_SUPER_METHOD")
_READ = ("LOAD_ATTR", "LOAD_SUPER_ATTR")
# What reads attributes whose names stand nowhere in the code.
_DYNAMIC = ("vars", "__dict__", "attrgetter", "methodcaller", "asdict", "astuple", "getmembers")


@dataclass
class Mentions:
    """What one code object, and those inside it, mention.

    Args:
        names: all names of globals and attributes, and words that could be names of attributes.
        reads: of these the ones that are read, and not just called as a method.
        globals: of these the globals.
        imports: (module, level, names) of the imports that run inside.
    """

    names: list[str]
    reads: set[str]
    globals: tuple[str, ...]
    imports: list[tuple[str, int, tuple[str, ...]]] = field(default_factory=list)


@functools.lru_cache(maxsize=8192)
def mentions_of(code: CodeType) -> Mentions:
    """Return what a code object mentions.

    Example:
        >>> found = mentions_of((lambda x: x.sum() + x.scale).__code__)
        >>> found.names, found.reads
        (['sum', 'scale'], {'scale'})
    """
    found = Mentions(list(names_in(code)), set(), globals_in(code))
    _add(found, code)
    found.names = list(dict.fromkeys([*found.names, *found.reads]))
    return found


def _add(found: Mentions, code: CodeType) -> None:
    constant: object = None
    level: object = 0
    for step in instructions_of(code):
        if step.opname in _READ and not _calls(step):
            found.reads.add(step.argval)
        elif step.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            level, constant = constant, step.argval
        elif step.opname == "IMPORT_NAME":
            names = constant if isinstance(constant, tuple) else ()
            found.imports.append((step.argval, level if type(level) is int else 0, names))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add(found, constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.reads.add(constant)  # getattr(x, "name")


def _calls(step: dis.Instruction) -> bool:
    """Whether an attribute is loaded to be called as a method: one opcode holds both from 3.12."""
    return step.opname in _METHOD or (
        step.arg is not None
        and dis.opname[step.opcode] == "LOAD_ATTR"
        and step.opcode in dis.hasname
        and "LOAD_METHOD" not in dis.opmap
        and bool(step.arg & 1)
    )


def looks_up(function: FunctionType, names: list[str]) -> bool:
    """Whether a function reads attributes by names that are made as it runs.

    Args:
        names: those that it mentions.
    """
    if any(name in _DYNAMIC for name in names):
        return True
    if "getattr" not in names:
        return False
    calls = [node for node, _, _ in nodes_of(function) if isinstance(node, ast.Call)]
    asked = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "getattr"]
    constant = [c for c in asked if len(c.args) > 1 and isinstance(c.args[1], ast.Constant)]
    return not asked or len(constant) < len(asked)
