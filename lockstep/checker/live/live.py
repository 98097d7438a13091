"""A step that cannot be captured, run live on every rank of a mesh, on real values.

Each rank writes the tape of what it did, op by op, forward and backward; the tapes are judged as
captures are. In one process the ranks run one after another. A rank goes on until it looks at a
value that comes of another's collective; once the others have come as far it runs anew, and the
collective then has its true result.
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lockstep.capture.live import run_live
from lockstep.capture.obstacles import line_of_error
from lockstep.capture.unknown import NotYet, Unknown
from lockstep.checker.live.kernels import Kernels
from lockstep.checker.live.meeting import Meeting, Parted, Start
from lockstep.checker.ranks import coordinates
from lockstep.checker.world import RankTrace, World, capture_rank, simulated_rank
from lockstep.errors import CaptureError

LIMIT_S = 120.0


def live_world(
    step: Callable[..., Any],
    make: Callable[[Any], Any],
    mesh: Mapping[str, int],
    limit_s: float = LIMIT_S,
) -> World:
    """Run a step on every rank of a mesh, and give the ranks' tapes; as `capture_world`.

    Args:
        step, make, mesh: as for `capture_world`; both are called several times for each rank.
        limit_s: seconds after which no rank runs anew.

    Returns:
        The tapes; `rounded`, where the step does not run in float64.

    Raises:
        Parted: a collective that not every rank of its axis calls, or calls otherwise.
        CaptureError: a rank fails, or they do not end.
    """
    end = time.monotonic() + limit_s
    try:
        return _lived(step, make, mesh, end, doubles=True)
    except CaptureError:
        if time.monotonic() > end:
            raise
        return _lived(step, make, mesh, end, doubles=False)


def _lived(step: Any, make: Any, mesh: Mapping[str, int], end: float, doubles: bool) -> World:
    meeting = Meeting(mesh)
    places = range(len(coordinates(mesh)))
    ranks = [_Rank(step, make, mesh, at, meeting, doubles) for at in places]
    while True:
        for rank in ranks:
            if rank.trace is None:
                rank.run()
        if all(rank.trace is not None for rank in ranks):
            traces = [rank.trace for rank in ranks if rank.trace is not None]
            return World(dict(mesh), traces, rounded=not doubles)
        if not meeting.meet():
            waits = {rank.at: rank.waits_for for rank in ranks if rank.trace is None}
            raise Parted(meeting.stuck(waits))
        if time.monotonic() > end:
            raise CaptureError(
                "the step did not end in time when it ran live",
                why="a rank runs anew for each collective that what follows depends on",
                fix="lockstep check SCRIPT runs the ranks at once, each in a process of its own",
            )


class _Rank:
    """One rank, which is run until its tape is complete."""

    def __init__(
        self, step: Any, make: Any, mesh: Any, at: int, meeting: Meeting, doubles: bool
    ) -> None:
        self._step, self._make, self._mesh, self._meeting = step, make, mesh, meeting
        self.at, self._doubles = at, doubles
        self.trace: RankTrace | None = None
        self.waits_for = 0
        self._draws: Any = None

    def run(self) -> None:
        """Run the step from its start, with the collectives' results that are known by now."""
        unknown = Unknown()
        results = self._meeting.results[self.at]
        kernels = Kernels(
            list(self._mesh), functools.partial(self._say, unknown), results.get, unknown.add
        )
        self._rewind()
        try:
            with contextlib.redirect_stdout(io.StringIO()), kernels.running():
                trace = self._tape(unknown)
        except NotYet:
            trace = None
        except Exception as error:
            if not kernels.unknown:
                raise failed_live(error) from error
            trace = None  # what is not known yet may be why
        if kernels.unknown:
            self.waits_for = kernels.unknown[0]
        else:
            self.trace = trace

    def _tape(self, unknown: Unknown) -> RankTrace:
        coordinate = coordinates(self._mesh)[self.at]
        how = functools.partial(run_live, unknown=unknown, doubles=self._doubles)
        with simulated_rank(self.at, self._mesh) as made:
            return capture_rank(self._step, self._make, made, self.at, coordinate, how)

    def _say(self, unknown: Unknown, start: Start, operand: torch.Tensor) -> None:
        known = start.arguments if not unknown.is_unknown(operand) else None
        self._meeting.add(self.at, start.knowing(known))

    def _rewind(self) -> None:
        """Python's and NumPy's draws are the same in every run."""
        numpy = sys.modules["numpy.random"]
        if self._draws is None:
            self._draws = random.getstate(), numpy.get_state()
        random.setstate(self._draws[0])
        numpy.set_state(self._draws[1])


def failed_live(error: Exception) -> CaptureError:
    """The error for a step that raised as it ran live."""
    if isinstance(error, CaptureError):
        return error
    text = "".join(traceback.format_exception_only(error)).strip()
    return CaptureError(
        "the step fails when it runs live, op by op", where=line_of_error(error), got=text
    )
