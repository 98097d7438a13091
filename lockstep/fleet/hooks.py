"""The ends of a process: an uncaught error is told to all ranks, a clean end is said."""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

from lockstep.fleet.fleet import Fleet


def install_hooks(fleet: Fleet) -> None:
    """Tell the fleet of an uncaught exception anywhere in the script, and of its end.

    `sys.excepthook` is chained, never replaced. Processes that this one forks are left alone.

    Args:
        fleet: the process's fleet; in a world of one nothing is installed.
    """
    if fleet.world == 1:
        return
    owner, before = os.getpid(), sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() == owner:
            fleet.tell(error, "running the script")
        before(kind, error, trace)

    def bye() -> None:
        if os.getpid() == owner:
            fleet.close()

    sys.excepthook = told
    atexit.register(bye)
