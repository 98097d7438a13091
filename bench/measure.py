"""What a process has cost: CPU seconds with all its descendants, wall seconds since its start."""

from __future__ import annotations

import compileall
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def _fields(pid: int | str) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on; the name before may hold spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _tree() -> dict[int, list[str]]:
    """Return the fields of this process and of every live descendant, by process id."""
    seen: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                seen[int(entry.name)] = _fields(entry.name)
            except OSError:
                continue  # it ended between the listing and the reading
    mine = {os.getpid()}
    while more := {pid for pid, stat in seen.items() if int(stat[1]) in mine} - mine:
        mine |= more
    return {pid: seen[pid] for pid in mine}


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, its live descendants, and those that have ended.

    A compiler that is not waited for yet, and a pool of compile workers, are counted while they
    live; those that ended count with the parent that waited for them.
    """
    ticks = (sum(map(int, stat[11:15])) for stat in _tree().values())  # own and waited children's
    return sum(ticks) * TICK_S


def age_seconds() -> float:
    """Return the wall seconds since this process was started, the interpreter's start included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(_fields("self")[19]) * TICK_S


def as_installed() -> None:
    """Byte-compile the package, as pip does when it installs it; torch beside it was so compiled.

    Where PYTHONDONTWRITEBYTECODE is set, each start from a checkout would compile all of it anew.
    """
    compileall.compile_dir(Path(__file__).parent.parent / "lockstep", quiet=2)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and from how low to how high where there are several.

    Example:
        >>> spread([1.0, 3.0, 2.0]), spread([1.5])
        ('2.00 (1.00-3.00)', '1.50')
    """
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"
