"""`ls.summary`: who built and who loaded, as a table, from the run's journals."""

from __future__ import annotations

from typing import Any

from lockstep.journal import read_journals
from lockstep.run.modes import ON, instead, mode
from lockstep.run.session import session


def summary() -> None:
    """Print, on rank 0, a line for each rank and variant: built or loaded, digest, seconds.

    Reads the journals in the run's folder: ranks on machines that do not share it are not shown.

    Example:
        >>> ls.summary()                                                     # doctest: +SKIP
    """
    if mode() != ON or instead() is not None:
        return
    here = session()
    if here.rank != 0:
        return
    from rich.console import Console
    from rich.table import Table

    rows = [e for e in read_journals(here.folder) if e["event"] == "ready"]
    title = f"{here.world} ranks, journal in {here.folder}"
    table = Table(
        "rank", "step", "variant", "role", "artifact", "seconds", "of which load", title=title
    )
    for event in sorted(rows, key=lambda e: (e["variant"], e["rank"])):
        table.add_row(*_row(event))
    Console().print(table)


def _row(event: dict[str, Any]) -> list[str]:
    seconds = event["seconds"]
    total = seconds["total"] + seconds["load"]
    return [
        str(event["rank"]),
        event["step"],
        event["variant"],
        event["role"],
        event["digest"][:12],
        f"{total:.2f}",
        f"{seconds['load']:.3f}",
    ]
