"""`ls.record`: numbers of a training step, kept in the journal for the curves of a report."""

from __future__ import annotations

from lockstep.errors import UsageError
from lockstep.run.modes import ON, instead, mode
from lockstep.run.session import journal_here


def record(step: int, **values: float) -> None:
    """Keep numbers of a training step in this rank's journal: `lockstep report` draws them.

    One line is written, without waiting for anybody; ranks may record what and when they like. With
    LOCKSTEP=off, and while a script is checked or built ahead of time, nothing is kept.

    Args:
        step: which one, counted by the caller.
        values: by name, as `loss=2.5`. A tensor of one element is read, which waits for its device.

    Raises:
        UsageError: no compiled step was called before, so that there is no journal.

    Example:
        >>> ls.record(3, loss=loss, lr=1e-3)                                 # doctest: +SKIP
    """
    journal = journal_here()
    if journal is None and mode() == ON and instead() is None:
        raise UsageError(
            "ls.record before the first call of a compiled step",
            why="the job's journal begins there",
            fix="call it after the step",
        )
    if journal is not None:
        numbers = {name: float(value) for name, value in values.items()}
        journal.event("record", step=step, **numbers)
