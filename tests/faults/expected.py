"""Where the docstring of each case of the default folder asks for its error: lines, and the axis.

Two lines where RIGHT allows two: a gradient that nobody reduced is told where the parameter is read
or where the optimizer would read it; a Function's backward anywhere in it or where it is called.
"""

from __future__ import annotations

import re
from typing import Any

LINES: dict[str, tuple[str, tuple[int, ...]]] = {
    "c01": ("tp", (22,)),
    "c02": ("tp", (21,)),
    "c03": ("tp", (21,)),
    "c04": ("tp", (20,)),
    "c06": ("tp", (19,)),
    "c07": ("tp", (21,)),
    "c08": ("tp", (20, 23)),
    "c12": ("tp", (18,)),
    "c13": ("tp", (16, 22)),
    "c16": ("tp", (16,)),
    "c19": ("tp", (17,)),
    "c21": ("dp", (21,)),
    "c22": ("dp", (17, 23)),
    "c26": ("tp", (20,)),
    "c29": ("rep", (21,)),
    "c33": ("ep", (24,)),
    "c36": ("tp", (17, 18, 19, 20, 21, 32)),
    "c38": ("tp", (15,)),
}
PEER = {
    "flagged, local": 14 / 43,
    "flagged, either mode": 24 / 43,
    "right programs refused": 9 / 43,
}


def wanted(case: str) -> tuple[str, tuple[int, ...]] | None:
    """Return axis and lines of a case by its file's name; None for cases of another folder."""
    return LINES.get(case.partition("_")[0])


def peer_said(case: Any) -> str:
    """Return what spmd_types 0.3.1 did, local mode and global mode, by the case's docstring."""
    told = re.search(r"local mode (\S+); global mode (\S+?)\.?\n", case.__doc__ or "")
    return ", ".join(word.lower() for word in told.groups()) if told else "n/a"
