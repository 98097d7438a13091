"""A function's code as a digest of its normalised source: no comments, docstrings or positions.

A file is parsed once for all its functions, and what comes of it is kept by the file's digest, so
that a restart parses nothing. What is told is the code that is loaded: where the file was edited
since it was imported, or something rewrote it, or there is none, the byte code is told instead.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import linecache
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

Table = dict[str, str]  # a code object's first line and its digest -> the digest of its source
_FORMAT = 1
_LARGEST, _MOST = 16 << 20, 500  # bytes of one table, and tables that are kept


@functools.lru_cache(maxsize=8192)
def digest_of_source(function: Any) -> str:
    """A digest of a function's code, the same in every process that loads the same text.

    Example:
        >>> digest_of_source(digest_of_source.__wrapped__) == digest_of_source(_key)
        False
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return f"no source of {function.__qualname__}"
    return _table(code.co_filename).get(_key(code), f"bytecode {digest_of_code(code)}")


def digest_of_code(code: CodeType) -> str:
    """A digest of byte code and all that it holds, but for names of files and lines."""
    parts = (
        code.co_code, [_constant(c) for c in code.co_consts], code.co_names, code.co_varnames,
        code.co_freevars, code.co_cellvars, code.co_flags, code.co_argcount,
        code.co_kwonlyargcount, code.co_posonlyargcount, code.co_exceptiontable,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return digest_of_code(value)
    if isinstance(value, frozenset):  # in another order in each process
        return ["frozenset", *sorted(map(repr, map(_constant, value)))]
    return [_constant(v) for v in value] if isinstance(value, tuple) else repr(value)


def _key(code: CodeType) -> str:
    return f"{code.co_firstlineno} {digest_of_code(code)}"


def _table(filename: str) -> Table:
    """The table of a file as it is now."""
    try:
        info = Path(filename).stat()
        return _table_of(filename, (info.st_mtime_ns, info.st_size))
    except OSError:  # a notebook's cell, whose text is kept for tracebacks
        text = "".join(linecache.getlines(filename))
        return _made(text) if text else {}


@functools.lru_cache(maxsize=1024)
def _table_of(filename: str, _seen: tuple[int, int]) -> Table:
    data = Path(filename).read_bytes()
    name = hashlib.sha256(b"%d %s " % (_FORMAT, sys.version.encode()) + data).hexdigest()
    kept = _kept(name)
    if kept is None:
        try:
            kept = table_of(data)
        except (SyntaxError, ValueError):  # edited since, and half done
            return {}
        _keep(name, kept)
    return kept


@functools.lru_cache(maxsize=64)
def _made(text: str) -> Table:
    try:
        return table_of(text.encode())
    except (SyntaxError, ValueError):
        return {}


def table_of(data: bytes) -> Table:
    """Parse a file and tell the source of every function in it.

    Example:
        >>> one, other = (table_of(text) for text in (b"def f(): return 1", b"def f(): return 1 #"))
        >>> one == other, len(one)
        (True, 1)
    """
    tree = ast.parse(data)
    codes: dict[tuple[int, str], list[CodeType]] = {}
    _collect(compile(data, "<source>", "exec", dont_inherit=True), codes)
    nodes: dict[tuple[int, str], list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            lines = [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]
            nodes.setdefault((min(lines), getattr(node, "name", "<lambda>")), []).append(node)
    _undocument(tree)
    table: Table = {}
    for place, found in codes.items():
        if len(found) == len(nodes.get(place, ())) == 1:  # two lambdas of a line: by byte code
            text = ast.dump(nodes[place][0])
            table[_key(found[0])] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return table


def _collect(code: CodeType, found: dict[tuple[int, str], list[CodeType]]) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.setdefault((constant.co_firstlineno, constant.co_name), []).append(constant)
            _collect(constant, found)


def _undocument(tree: ast.AST) -> None:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                body.pop(0)


# ---- tables kept from one start to the next


def own_folder() -> Path:
    """Where the tables are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lockstep" / "sources"


def remembered(seen: Any, make: Callable[[], str]) -> str:
    """What was made of files at an earlier start, as long as they are those that were seen then.

    Args:
        seen: their names, times and sizes; JSON.
        make: makes it of what they hold.
    """
    name = hashlib.sha256(json.dumps([_FORMAT, seen]).encode()).hexdigest()
    kept = _kept(name)
    if kept is None or "made" not in kept:
        kept = {"made": make()}
        _keep(name, kept)
    return kept["made"]


def _kept(name: str) -> Table | None:
    """A table that this user has kept; None where there is none, or it could be another's work."""
    try:
        with (own_folder() / f"{name}.json").open("rb") as file:
            info = os.fstat(file.fileno())
            if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o022:
                return None
            table = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RuntimeError):
        return None
    sound = isinstance(table, dict) and all(type(value) is str for value in table.values())
    return table if sound else None


def _keep(name: str, table: Table) -> None:
    """Keep a table, where a disk takes it; ranks that write at once write the same."""
    try:
        folder = own_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(table, file)
        temporary.rename(folder / f"{name}.json")
        _drop_old(folder)
    except (OSError, RuntimeError):
        return  # the next start parses again


def _drop_old(folder: Path) -> None:
    kept = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in kept[: max(len(kept) - _MOST, 0)]:
        path.unlink(missing_ok=True)
