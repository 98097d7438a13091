"""On each rank of a job: capture every compiled step at its first call, for a judge of them all."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep import _compat
from lockstep.capture.binding import Call
from lockstep.capture.live import run_live
from lockstep.checker.captured import why
from lockstep.checker.live.live import failed_live
from lockstep.checker.shipping import to_bytes
from lockstep.checker.world import trace_call
from lockstep.errors import CaptureError, LockstepError, UsageError
from lockstep.report.capture_check import Enough
from lockstep.report.hub import meeting_at
from lockstep.run.step import CompiledStep, refuse_nested, steps_made
from lockstep.spmd.claims import Recording, recording_claims


@dataclass(frozen=True)
class Shipped:
    """One rank's part in a check of one step.

    Args:
        mesh: axis -> size, outermost first; `place` is this rank's place in it, row-major.
        data: the axes over which batches differ.
        file: what holds the capture; "" where it was refused, with the text of the refusal.
        why: the refusal in a line, where running the step live may do instead.
        pending: axis -> "mean" or "sum": what something after the step does to its gradients.
    """

    step: str
    mesh: dict[str, int]
    place: int
    data: tuple[str, ...]
    file: str
    refused: str = ""
    why: str = ""
    pending: dict[str, str] = field(default_factory=dict)


LIVE = "live"  # the file of a job's folder that says which steps are run so


@dataclass(frozen=True)
class Live:
    """The steps that are run live, by name, and how.

    Args:
        hub: the address of the hub where ranks then meet.
        doubles: they compute in float64, not in their own dtypes.
    """

    steps: tuple[str, ...] = ()
    hub: str = ""
    doubles: bool = True


class WorldCheck:
    """Stands in for compiled steps while a script runs; see `modes.calls_go_to`.

    Args:
        folder: where captures are put; `rank` makes their names this rank's own.
        calls: after so many calls of steps the script is left, whatever was not called yet. Only
            what is captured is safe: a step that runs may hang, if it is wrong.
        live: steps that are not captured, but run live.
    """

    def __init__(self, folder: Path, rank: int, calls: int, live: Live | None = None) -> None:
        self._live = live or Live()
        self.shipped: dict[str, Shipped] = {}
        self._folder, self._rank, self._left = folder, rank, calls
        self._running = False  # a step, eagerly: what it calls is a part of it
        self._inside: set[str] = set()
        self._said = Recording()
        self._recording = contextlib.ExitStack()
        self._listen()

    def __call__(self, step: CompiledStep) -> Callable[..., Any]:
        """What runs in place of a step."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._running or _compat.is_tracing():
                self._inside.add(step.name)
                refuse_nested(step)
                return step.step.function(*args, **kwargs)
            if step.name not in self.shipped:
                self.shipped[step.name] = self._ship(step, step.step.call(args, kwargs))
            self._left -= 1
            if self._left <= 0 or not self.not_called():
                raise Enough
            self._running = True
            try:
                return step.step.function(*args, **kwargs)
            finally:
                self._running = False

        return run

    def not_called(self) -> list[str]:
        """The names of the steps that exist and were not called yet."""
        return [name for name in steps_made() if name not in (*self.shipped, *self._inside)]

    def _listen(self) -> None:
        """Note the claims that the set-up makes: those of its parameters are known by them."""
        self._heard = self._recording.enter_context(recording_claims())

    def _ship(self, step: CompiledStep, call: Call) -> Shipped:
        self._recording.close()
        self._said.claims += self._heard.claims
        try:
            sizes, place, coordinate = _place(step)
            where = (step.mesh, place, coordinate)
            if step.name in self._live.steps:
                with meeting_at(self._live.hub, step.name, sizes, place):
                    how = functools.partial(run_live, doubles=self._live.doubles)
                    trace = trace_call(step.step, call, self._said, *where, how)
            else:
                trace = trace_call(step.step, call, self._said, *where)
            file = f"{len(self.shipped)}-{self._rank}.trace"
            (self._folder / file).write_bytes(to_bytes(trace))
        except CaptureError as error:
            return Shipped(step.name, {}, self._rank, (), "", str(error), why(error))
        except LockstepError as error:
            return Shipped(step.name, {}, self._rank, (), "", str(error))
        except Exception as error:
            if step.name not in self._live.steps:
                raise
            return Shipped(step.name, {}, self._rank, (), "", str(failed_live(error)))
        finally:
            self._listen()
        later = step.options.reductions
        return Shipped(step.name, sizes, place, step.data, file, pending=later)


def _place(step: CompiledStep) -> tuple[dict[str, int], int, dict[str, int]]:
    """The step's mesh, and this rank's place in it."""
    mesh = step.mesh
    if mesh is None or mesh.mesh_dim_names is None:
        raise UsageError(
            f"{step.name} names no mesh, and its gradients are judged along mesh axes",
            fix="@ls.compile(mesh=ls.mesh(dp=-1))",
        )
    at = mesh.get_coordinate()
    if at is None:
        raise CaptureError(f"a rank of the job is not in the mesh of {step.name}", got=str(mesh))
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    place = 0
    for coordinate, size in zip(at, mesh.shape, strict=True):
        place = place * size + coordinate
    return sizes, place, dict(zip(sizes, at, strict=True))
