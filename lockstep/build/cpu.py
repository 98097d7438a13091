"""The CPU's instruction sets, as /proc/cpuinfo names them."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


def parse_cpuinfo(text: str) -> frozenset[str]:
    """Return the features that every processor of a /proc/cpuinfo text has.

    Example:
        >>> sorted(parse_cpuinfo("flags : fpu avx2\\n\\nflags : fpu avx2 amx\\n"))
        ['avx2', 'fpu']
    """
    lines = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return (
        frozenset.intersection(*(frozenset(line.split()) for line in lines))
        if lines
        else frozenset()
    )


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the features of this machine's processors; empty where there is no /proc/cpuinfo."""
    try:
        return parse_cpuinfo(_CPUINFO.read_text())
    except OSError:
        return frozenset()
