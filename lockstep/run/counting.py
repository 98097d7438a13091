"""Counts compilers that this process starts, and graphs that Inductor lowers in it."""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from typing import Any

from lockstep import _compat

COMPILERS = (
    "cc", "gcc", "g++", "c++", "clang", "clang++", "icx", "icpx", "nvcc", "ptxas", "hipcc",
)  # fmt: skip

_counts: Counter[str] | None = None


def counting() -> Counter[str]:
    """Start counting in this process, once; the counts go on changing.

    Returns:
        "lowerings", and the starts of each compiler under its name. Compilers that a child process
        starts are not seen.

    Example:
        >>> counts = counting()                                              # doctest: +SKIP
        >>> counts["g++"]                                                    # doctest: +SKIP
        0
    """
    global _counts
    if _counts is None:
        counts = _counts = Counter()
        # What the hook needs is bound to it: it is still called when modules are torn down.
        sys.addaudithook(functools.partial(_count, counts))
        _compat.on_lowering(lambda: counts.update(["lowerings"]))
    return _counts


def _count(counts: Counter[str], event: str, args: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    name = compiler_name(args[0], args[1])
    if name is not None:
        counts[name] += 1


def compiler_name(executable: Any, command: Any) -> str | None:
    """The compiler that a process start runs, if it is one.

    Example:
        >>> compiler_name("/usr/bin/g++", ["g++", "-c", "a.cpp"]), compiler_name("ls", ["ls"])
        ('g++', None)
    """
    words = command.split() if isinstance(command, str) else list(command)
    for word in (executable, *words[:1]):
        name = os.path.basename(os.fsdecode(word)) if word else ""  # noqa: PTH119
        base = name.rstrip("0123456789.-")
        if base in COMPILERS:
            return base
    return None


def starts(counts: Counter[str]) -> dict[str, int]:
    """The compilers' part of the counts."""
    return {name: number for name, number in counts.items() if name in COMPILERS}
