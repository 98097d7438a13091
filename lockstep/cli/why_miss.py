"""`lockstep why-miss`: why did a job build what it could have loaded?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from lockstep.errors import UsageError


def why_miss(
    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")] = Path("runs/latest"),
    /,
    most: int = 40,
) -> int:
    """Print why each program that a job built was not in its store, field by field.

    What is told was written by the job as it started; nothing is run again.

    Args:
        run: the job's folder of journals.
        most: fields of each program that are shown.
    """
    if not run.is_dir():
        raise UsageError(f"{run} is no folder", want="a run's folder, such as runs/latest")
    from lockstep.build.describe import printable
    from lockstep.build.differing import Row, table
    from lockstep.journal import read_journals

    events = read_journals(run)
    if not events:
        raise UsageError(f"{run} holds no journal", want="a run's folder, such as runs/latest")
    missed = [event for event in events if event["event"] == "missed"]
    for event in missed:
        rows = [Row(**row) for row in event.get("rows", [])]
        print(printable("\n".join([f"{event['step']}: {event['why']}", *table(rows, most)])))
    loaded = sum(event["event"] == "ready" and event["rank"] == 0 for event in events)
    if not missed:
        print(f"nothing was missed: {loaded} programs were loaded from the store")
    return 1 if missed else 0
