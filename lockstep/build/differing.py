"""Why two artifacts are not the same one: every field that differs, old and new, and what it does.

The standard library alone is used, and nothing of what is compared is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]
MISSING = "-"

# What a field decides, by its first word; any other word decides what the step computes.
_COMPILED = ("flag", "version", "build", "machine", "backend")
_NOTHING = ("not covered",)
PROGRAM, KERNELS, NEITHER = "the program", "how it is compiled", "neither"


@dataclass(frozen=True)
class Row:
    """One place in which two fingerprints differ.

    Args:
        name: the field, and where in it: "module model.layers.0: eps".
        old, new: as one line of text; "-" where it is missing.
        decides: what it can change.
    """

    name: str
    old: str
    new: str
    decides: str


def rows_of(old: Fields, new: Fields) -> list[Row]:
    """Every place in which two fingerprints differ, those that can change the program first.

    Example:
        >>> rows_of({"module m": {"eps": 1}, "flag mkldnn": True}, {"module m": {"eps": 2}})
        ... # doctest: +NORMALIZE_WHITESPACE
        [Row(name='module m: eps', old='1', new='2', decides='the program'),
         Row(name='flag mkldnn', old='true', new='-', decides='how it is compiled')]
    """
    rows = []
    for field in sorted({*old, *new}):
        for path, one, other in _leaves(old.get(field, _NONE), new.get(field, _NONE), ""):
            name = f"{field}: {path}" if path else field
            rows.append(Row(name, _text(one), _text(other), _decides(field)))
    order = (PROGRAM, KERNELS, NEITHER)
    return sorted(rows, key=lambda row: order.index(row.decides))


def table(rows: list[Row], most: int | None = None) -> list[str]:
    """The rows as lines of text, each old -> new, under what they decide.

    Args:
        most: rows that are shown; the others are counted.
    """
    shown, lines, title = rows[:most], [], ""
    width = max((len(row.name) for row in shown), default=0)
    for row in shown:
        if row.decides != title:
            title = row.decides
            count = sum(other.decides == title for other in rows)
            lines.append(f"{count} that can change {title}" if title != NEITHER else
                         f"{count} that change nothing by themselves")  # fmt: skip
        lines.append(f"  {row.name.ljust(min(width, 60))}  {row.old} -> {row.new}")
    if len(rows) > len(shown):
        lines.append(f"  and {len(rows) - len(shown)} more")
    return lines


def named(rows: list[Row], most: int = 3) -> str:
    """The names of the first rows, in one line."""
    names = ", ".join(f"{row.name} ({row.old} -> {row.new})" for row in rows[:most])
    return names + (f" and {len(rows) - most} more" if len(rows) > most else "")


class _Missing:
    pass


_NONE = _Missing()


def _leaves(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            inner = f"{path}.{key}" if path else str(key)
            yield from _leaves(one.get(key, _NONE), other.get(key, _NONE), inner)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (mine, its) in enumerate(zip(one, other, strict=True)):
            yield from _leaves(mine, its, f"{path}[{at}]")
    elif type(one) is not type(other) or one != other:
        yield path, one, other


def _decides(field: str) -> str:
    if field in _NOTHING:
        return NEITHER
    return KERNELS if field.partition(" ")[0] in _COMPILED else PROGRAM


def _text(value: Any) -> str:
    """A value in one line; a float's exact form as the number that it is."""
    if value is _NONE:
        return MISSING
    if isinstance(value, str):
        try:
            return repr(float.fromhex(value)) if value.lstrip("-").startswith("0x") else value
        except ValueError:
            return value
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
