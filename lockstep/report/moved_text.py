"""`lockstep check --two-batches` as text."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.report.check import Checked


def moved_lines(checked: Checked) -> Iterator[str]:
    """A block for each constant that moved, notes, and a last line that counts."""
    for step in checked.steps:
        for text in step.obstacles:
            yield f"{step.step}: {text}\n"
        for note in step.notes:
            yield f"{step.step}: {note}: another shape is another program; see dynamic="
    for name in checked.not_called:
        yield f"{name} was not called twice, and is not compared"
    if checked.failed is not None:
        yield f"the script failed later:\n{checked.failed}"
    count, steps = checked.obstacles, len(checked.steps)
    if not steps:
        yield "no step was called twice: nothing was compared"
    elif count:
        yield f"{count} constant{'s' if count > 1 else ''} moved, or could not be compared"
    else:
        yield f"no constant moved between the first two calls of {steps} step{'s'[: steps > 1]}"
