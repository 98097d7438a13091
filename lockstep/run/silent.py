"""A step run once more than its user asked for: what it tells and calls beside is left out.

A step that was captured does nothing else that could be seen from outside: a capture refuses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lockstep.capture.binding import Call, Step
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.emits import Emits
from lockstep.capture.telling import telling
from lockstep.spmd.claims import Place, in_phase
from lockstep.spmd.effects import Where, recorder


@contextlib.contextmanager
def silent(step: Step, call: Call) -> Iterator[None]:
    """Leave out, on this thread, what a capture notes as an effect of the step.

    That is `ls.log`, `ls.on_rank`, print, the standard streams, logging, and what is told to a
    writer of scalars or a progress bar. `ls.phase()` is "build", as while the step was captured.
    """
    quiet = Emits(step, call, Coordinates({}, step.known), quiet=True)
    token = recorder.set(_Nobody())
    try:
        with telling(quiet), in_phase("build"):
            yield
    finally:
        recorder.reset(token)


class _Nobody:
    """Hears of effects, and keeps none."""

    def log(self, text: str, values: tuple[Any, ...], where: Where, place: Place) -> None:
        """Leave a line out."""

    def call_on(
        self, callback: Callable[..., Any], values: tuple[Any, ...], where: Where, place: Place
    ) -> None:
        """Leave a call out."""
