"""`lockstep watch`: a run that is going on, live in the terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import tyro

from lockstep.errors import UsageError


def watch(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")] = Path("runs/latest"),
    /,
    every: float = 1.0,
    once: bool = False,
) -> int:
    """Show what each rank of a run does now, since when, and what it waits for.

    It reads the journals alone: the job does not notice. It ends when all ranks have left; exit
    code 1 where one has failed.

    Args:
        run: the job's folder of journals.
        every: seconds between two looks.
        once: look once and leave.
    """
    if not run.is_dir():
        raise UsageError(f"{run} is no folder", want="a run's folder, such as runs/latest")
    if every <= 0:
        raise UsageError(f"--every {every:g}", want="more than 0 seconds")
    from rich.console import Console
    from rich.live import Live

    from lockstep.report.watch import Follower, table

    follower, folder = Follower(run.resolve()), run.resolve()
    follower.look()
    if once:
        Console().print(table(follower, time.time(), folder.name))
    else:
        with Live(table(follower, time.time(), folder.name), auto_refresh=False) as live:
            while not follower.over:
                time.sleep(every)
                follower.look()
                live.update(table(follower, time.time(), folder.name), refresh=True)
    return 1 if any(status.phase == "failed" for status in follower.ranks.values()) else 0
