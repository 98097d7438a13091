"""A world for the witnesses: captured, or run live where no capture can hold the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.checker.implied import differentiated
from lockstep.checker.live.live import live_world
from lockstep.checker.live.meeting import Parted
from lockstep.checker.world import World, capture_world
from lockstep.errors import CaptureError, LockstepError

Function = Callable[..., Any]


@dataclass(frozen=True)
class Captured:
    """A step on all ranks.

    Args:
        step: as it was captured: one without a backward() of its own was given one.
        live: why it could not be captured, at its line; "" where it was.
        implied: it had no backward() of its own, and nothing of it reduces a gradient.
    """

    step: Function
    world: World
    live: str = ""
    implied: bool = False

    @property
    def world_of(self) -> Callable[..., World]:
        """What captures the step on another mesh."""
        return live_world if self.live else capture_world


def reduced_later(
    found: Captured, data: tuple[str, ...], pending: Mapping[str, str]
) -> dict[str, str]:
    """How gradients may be reduced after the step: what has no loss leaves it to who has one."""
    return {**(dict.fromkeys(data, "sum") if found.implied else {}), **pending}


def captured(
    step: Function, make: Callable[[Any], Any], mesh: Mapping[str, int], by_shape: bool = False
) -> Captured:
    """Capture a step for the ranks of a mesh; where it cannot be, run it live and keep the tapes.

    Args:
        step, make, mesh, by_shape: as for `capture_world`; what has no values is not run.

    Raises:
        CaptureError: it can neither be captured nor run so.
        Parted: running live, its ranks call other collectives.
    """
    try:
        return _whole(step, make, mesh, by_shape=by_shape)
    except CaptureError as refused:
        if by_shape:
            raise
        try:
            return _whole(step, make, mesh, live=why(refused))
        except Parted as parted:
            parted.live = why(refused)
            raise parted from refused
        except LockstepError as error:
            refused.add_note(f"run live, op by op, in place of a capture: {error}")
            raise refused from error


def why(refused: CaptureError) -> str:
    """A refusal in a line: what, and where."""
    return f"{refused.what}, {refused.where}" if refused.where else refused.what


def _whole(
    step: Function, make: Any, mesh: Mapping[str, int], live: str = "", **options: Any
) -> Captured:
    world_of: Callable[..., World] = live_world if live else capture_world
    world = world_of(step, make, mesh, **options)
    has_parameters = any(spec.requires_grad for spec in world.ranks[0].graph.inputs)
    implied = not world.ranks[0].notes.roots and has_parameters
    if implied:
        step = differentiated(step)
        world = world_of(step, make, mesh, **options)
    return Captured(step, world, live, implied)
