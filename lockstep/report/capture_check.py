"""Capture each compiled step at its first call, and keep all obstacles that one pass reaches."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lockstep import _compat
from lockstep.capture.capture import capture_call
from lockstep.capture.obstacles import line_of_error
from lockstep.capture.refusal import Obstacles, collecting
from lockstep.capture.state import collect
from lockstep.errors import CaptureError, LockstepError
from lockstep.run.step import CompiledStep, refuse_nested, steps_made

_TRIES = 8  # sides of branches taken anew, where the first side only raises


class Enough(BaseException):
    """Everything was seen: leaves the user's script, past its own `except Exception`."""


@dataclass(frozen=True)
class Captured:
    """What the capture of one step gave.

    Args:
        obstacles: their texts; none where the step was captured.
        nodes, collectives: of the graph; 0 where there is none.
        notes: what is no obstacle, but told.
    """

    step: str
    obstacles: list[str]
    nodes: int = 0
    collectives: int = 0
    notes: list[str] = field(default_factory=list)


class CaptureCheck:
    """Stands in for compiled steps while a script runs; see `modes.calls_go_to`.

    A step is captured at its first call. While there are steps that were not called yet, it then
    runs eagerly, so that the script goes on.

    Args:
        calls: after so many calls of steps the script is left, whatever was not called yet.
    """

    def __init__(self, calls: int) -> None:
        self.captured: dict[str, Captured] = {}
        self._left = calls
        self._running = False  # a step, eagerly: what it calls is a part of it
        self._inside: set[str] = set()

    def __call__(self, step: CompiledStep) -> Callable[..., Any]:
        """What runs in place of a step."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._running or _compat.is_tracing():
                self._inside.add(step.name)
                refuse_nested(step)
                return step.step.function(*args, **kwargs)
            self.look(step, args, kwargs)
            self._left -= 1
            if self._left <= 0 or not self.not_called():
                raise Enough
            self._running = True
            try:
                return step.step.function(*args, **kwargs)
            finally:
                self._running = False

        return run

    def look(self, step: CompiledStep, args: Any, kwargs: Any) -> None:
        """Capture a step, at its first call."""
        if step.name not in self.captured:
            self.captured[step.name] = capture_all(step, args, kwargs)

    def not_called(self) -> list[str]:
        """The names of the steps that exist and were not called yet."""
        return [name for name in steps_made() if name not in (*self.captured, *self._inside)]


def capture_all(step: CompiledStep, args: Any, kwargs: Any) -> Captured:
    """Capture one call; where obstacles are met, go on as far as stand-ins carry.

    Args:
        step: the compiled step.
        args, kwargs: of its call.
    """
    met: list[str] = []
    assume: dict[str, bool] = {}
    for _ in range(_TRIES):
        obstacles, graph, turn = Obstacles(assume), None, None
        try:
            with collecting(obstacles):
                call = step.step.call(args, kwargs)
                graph = capture_call(step.step, call, collect(call))
        except LockstepError as error:
            obstacles.add(error)
        except Exception as error:
            turn = next((line for line in reversed(obstacles.taken) if line not in assume), None)
            if turn is None:
                obstacles.add(_raised(error))
        met += [text for text in map(str, obstacles.found) if text not in met]
        if turn is None:
            break
        assume[turn] = False
    if met or graph is None:
        return Captured(step.name, met)
    return Captured(step.name, [], len(graph.gm.graph.nodes), len(graph.schedule))


def _raised(error: Exception) -> CaptureError:
    text = "".join(traceback.format_exception_only(error)).strip()
    return CaptureError(
        f"the step raises {type(error).__name__} while it is captured",
        where=line_of_error(error),
        got=text,
        why="nothing behind this line could be looked at",
        fix="LOCKSTEP=off runs the same script eagerly: does it raise there too?",
    )
