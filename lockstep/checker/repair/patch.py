"""Lines of the user's files replaced in text: what is tried out, and the patch that says it.

No file is written. What a fix names and a file does not import is imported at its head.
"""

from __future__ import annotations

import ast
import difflib
import re
import symtable
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.checker.repair.edits import CannotEdit, Edit
from lockstep.checker.source import full_path

# As git and patch take files: any bytes, which come out as they went in.
_AS_BYTES = ("utf-8", "surrogateescape")
_IMPORTS = {"ls": "import lockstep as ls", **dict.fromkeys("RIVPS", "from lockstep import {}")}


@dataclass(frozen=True)
class Patch:
    """Edits as one text.

    Args:
        text: a unified diff, as `git apply` and `patch -p1` take it; "" for no edits.
        files: the files that it changes, as it names them.
        outside: files whose edits are not in it, since they lie outside of its folder.
    """

    text: str
    files: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """What is written to a file: the lines of sources as they stand there."""
        return self.text.encode(*_AS_BYTES)


def patch_of(edits: Iterable[Edit], folder: Path) -> Patch:
    """Write edits as a patch.

    Args:
        edits: of two that replace one line differently, the first holds.
        folder: where the patch is to be applied; files are named from there.

    Raises:
        CannotEdit: a file is not as the edits were made for.
    """
    parts, files, outside = [], [], []
    for path, texts in by_file(edits).items():
        if not path.is_relative_to(folder.resolve()):
            outside.append(str(path))
            continue
        old = read(path)
        new = with_lines(old, texts, str(path))
        if new == old:
            continue
        name = path.relative_to(folder.resolve()).as_posix()
        files.append(name)
        parts += _diff(old, new, name)
    return Patch("".join(parts), tuple(files), tuple(outside))


def edited_texts(edits: Iterable[Edit]) -> dict[str, str]:
    """The whole new text of each file that edits change, by its resolved path.

    Raises:
        CannotEdit: a file is not as the edits were made for.
    """
    files = by_file(edits).items()
    return {str(path): with_lines(read(path), texts, str(path)) for path, texts in files}


def by_file(edits: Iterable[Edit]) -> dict[Path, dict[int, str]]:
    """File -> number of a line -> the text that takes its place."""
    found: dict[Path, dict[int, str]] = {}
    for edit in edits:
        short, _, number = edit.line.rpartition(":")
        lines = found.setdefault(Path(full_path(short)).resolve(), {})
        lines.setdefault(int(number), edit.text)
    return found


def read(path: Path) -> str:
    """A file's text; bytes that are no UTF-8 are kept as they are.

    Raises:
        CannotEdit: it cannot be read.
    """
    try:
        return path.read_bytes().decode(*_AS_BYTES)
    except OSError as error:
        raise CannotEdit(str(error)) from error


def with_lines(source: str, texts: Mapping[int, str], name: str = "<source>") -> str:
    """Replace lines of a module's source, and import at its head what the new ones name.

    Args:
        source: the module's text.
        texts: number of a line -> its new text without indentation; several lines are one
            statement each. A comment behind the old line stays.
        name: of the module, for messages.

    Raises:
        CannotEdit: there is no such line, or what comes out is no Python.

    Example:
        >>> print(with_lines("import lockstep as ls\\ny = x  # why\\n", {2: "y = ls.R"}), end="")
        import lockstep as ls
        y = ls.R  # why
    """
    lines = _lines(source)
    wanted: set[str] = set()
    for number, text in texts.items():
        if not 0 < number <= len(lines):
            raise CannotEdit(f"{name} has no line {number}")
        old = lines[number - 1]
        wanted |= _names(text) - _names(old)
        lines[number - 1] = _replaced(old, text)
    made = "".join(lines)
    missing = sorted(wanted & set(_IMPORTS) - _bound(made, name))
    if not missing:
        return made
    at = _head(source, name)  # edits keep the number of no line below them
    shift = sum(text.count("\n") for number, text in texts.items() if number <= at)
    new = _lines(made)
    new[at + shift : at + shift] = _imports(missing, _ending(lines[0] if lines else ""))
    return "".join(new)


def _lines(text: str) -> list[str]:
    """Lines with their ends, as difflib wants them; a form feed ends none."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _ending(line: str) -> str:
    return "\r\n" if line.endswith("\r\n") else "\n"


def _names(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))


def _replaced(old: str, text: str) -> str:
    body = old.rstrip("\r\n")
    ending, code = old[len(body) :], body.split("  #")[0]
    indent = body[: len(body) - len(body.lstrip())]
    new = (_ending(old)).join(indent + line for line in text.splitlines())
    return f"{new}{body[len(code) :]}{ending}"


def _imports(missing: list[str], ending: str) -> list[str]:
    types = ", ".join(name for name in missing if name != "ls")
    found = [_IMPORTS["ls"]] if "ls" in missing else []
    found += [_IMPORTS["I"].format(types)] if types else []
    return [line + ending for line in found]


def _bound(source: str, name: str) -> set[str]:
    try:
        table = symtable.symtable(source.encode(*_AS_BYTES), name, "exec")  # type: ignore[arg-type]
    except (SyntaxError, ValueError) as error:
        raise CannotEdit(f"{name}: {error}") from error
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}


def _head(source: str, name: str) -> int:
    """The number of lines before which nothing may be imported: docstring and first imports."""
    try:
        body = ast.parse(source.encode(*_AS_BYTES)).body
    except (SyntaxError, ValueError) as error:
        raise CannotEdit(f"{name}: {error}") from error
    end = 0
    for at, node in enumerate(body):
        docstring = at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not docstring and not isinstance(node, (ast.Import, ast.ImportFrom)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            return end or first - 1
        end = node.end_lineno or end
    return end


def _diff(old: str, new: str, name: str) -> list[str]:
    rows = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    return [row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows]
