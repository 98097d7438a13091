"""How far the training is, on rank 0: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_LINE_S = 10.0  # between two lines where there is no terminal


class Progress:
    """Shows steps while it is entered; shows nothing where `shown` is false.

    Args:
        steps: in all.
        begin: steps made before.
    """

    def __init__(self, steps: int, begin: int, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._steps, self._shown, self._next = steps, shown, 0.0
        self._live = shown and sys.stderr.isatty()
        text = TextColumn("{task.description}")
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text)
        self._bar = Bar(*columns, console=Console(stderr=True), disable=not self._live)
        self._task = self._bar.add_task("", total=steps, completed=begin)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def update(self, step: int, text: str) -> None:
        """Show that so many steps are made, with a text beside them."""
        if self._live:
            self._bar.update(self._task, completed=step, description=text)
        elif self._shown and (time.monotonic() >= self._next or step == self._steps):
            self._next = time.monotonic() + _LINE_S
            print(f"step {step}/{self._steps}  {text}", file=sys.stderr, flush=True)
