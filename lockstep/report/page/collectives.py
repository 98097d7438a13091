"""The collectives of a program by axis: how many, and how many bytes each rank puts in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_BITS = {"bool": 8, "c64": 64, "c128": 128}


@dataclass(frozen=True)
class Row:
    """Collectives of one kind, along one axis, in one phase of a step.

    Args:
        count: how many in one call of the program.
        bytes: that a rank puts in, all together; None where a size is known at run time alone.
        lines: the user's lines, those with the most bytes first.
    """

    axis: str
    op: str
    phase: str
    count: int
    bytes: int | None
    lines: list[str]


def size_of(item: dict[str, Any]) -> int | None:
    """The bytes of a schedule's entry.

    Example:
        >>> size_of({"shape": ["8", "16"], "dtype": "f32"}), size_of({"shape": ["s0"]})
        (512, None)
    """
    dtype = str(item.get("dtype", ""))
    digits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz").partition("_")[0].partition("e")[0]
    bits = _BITS.get(dtype) or (int(digits) if digits.isdigit() else 0)
    sizes = [str(size) for size in item.get("shape", [])]
    if not bits or not all(size.isdigit() for size in sizes):
        return None
    return math.prod(map(int, sizes)) * bits // 8


def by_axis(schedule: list[dict[str, Any]]) -> list[Row]:
    """A schedule's rows, the axis and operation with the most bytes first."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for item in schedule:
        key = item.get("axis", "?"), item.get("op", "?"), item.get("phase", "")
        found.setdefault(key, []).append(item)
    rows = [Row(*key, len(items), _sum(items), _lines(items)) for key, items in found.items()]
    return sorted(rows, key=lambda row: (row.axis, -(row.bytes or 0), row.op))


def _sum(items: list[dict[str, Any]]) -> int | None:
    sizes = [size_of(item) for item in items]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _lines(items: list[dict[str, Any]]) -> list[str]:
    found: dict[str, int] = {}
    for item in items:
        if item.get("line"):
            found[item["line"]] = found.get(item["line"], 0) + (size_of(item) or 0)
    return sorted(found, key=lambda line: -found[line])
