"""What some ranks do beside the step's computation: print a line, call a function. In order.

No value of the step depends on it. While a step is captured, it is noted with the values it wants,
and each rank that is meant does it after the program ran; anywhere else it happens at once.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lockstep.errors import UsageError
from lockstep.spmd.claims import Place, phase
from lockstep.spmd.mesh import WORLD
from lockstep.spmd.mesh import axis as axis_named

_TORCH = str(Path(torch.__file__).parent) + os.sep
PLAIN = (type(None), bool, int, float, str, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True)
class Where:
    """The ranks that something is for, by their places on axes ("world": the rank itself).

    Args:
        names: what is read, as `ops.read_place` has it.
        places: combinations of what is read.
        inside: whether it is for the ranks that read one of these combinations, or for all others.

    Example:
        >>> Where(("world",), ((0,), (2,))).asdict()["names"]
        ['world']
    """

    names: tuple[str, ...] = ()
    places: tuple[tuple[int, ...], ...] = ((),)
    inside: bool = True

    def asdict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        words = asdict(self)
        return {**words, "names": list(self.names), "places": [list(p) for p in self.places]}

    def here(self) -> bool:
        """Whether this rank is one of them."""
        found = tuple(place_here(name) for name in self.names)
        return (found in self.places) == self.inside


def place_here(name: str) -> int:
    """Return this rank's place on an axis; "world": its rank; "tp@1": the rank at a place of it."""
    axis, _, place = name.partition("@")
    if place:
        return axis_named(axis).ranks[int(place)]
    if axis == WORLD:
        return dist.get_rank() if dist.is_initialized() else 0
    return axis_named(axis).ranks.index(dist.get_rank())


class Recorder(Protocol):
    """What notes effects while a step is captured."""

    def log(self, text: str, values: tuple[Any, ...], where: Where, place: Place) -> None:
        """Note a line of text."""

    def call_on(
        self, callback: Callable[..., Any], values: tuple[Any, ...], where: Where, place: Place
    ) -> None:
        """Note a call."""


recorder: ContextVar[Recorder | None] = ContextVar("lockstep_effects", default=None)


def log(text: str, *values: Any, rank: int | None = None, **places: int) -> None:
    """Print a line on one rank, from inside a step or anywhere else.

    In a compiled step the line is printed after the program ran, in order with the step's other
    effects, once a call, with the values that the tensors had at this place of the step. In a check
    nothing is printed.

    Args:
        text: with places in braces, as for `str.format`.
        values: tensors and numbers of the step; a tensor of one element is shown as its number.
        rank: the rank that prints; 0 where nothing is said.
        places: instead of `rank`, places on mesh axes: `dp=0` prints on every rank at 0 of dp.

    Raises:
        UsageError: the text does not fit the values, there is no such rank, or a value is neither a
            tensor nor a plain number or text.

    Example:
        >>> log("loss {:.3f}", torch.tensor(0.25))
        loss 0.250
    """
    doing(_log, text, values, rank, places)


def _log(text: str, values: tuple[Any, ...], rank: int | None, places: dict[str, int]) -> None:
    place = _asker()
    where = _where(rank, places, "ls.log", place)
    _check_values(values, "ls.log", place)
    _check_text(text, values, place)
    noting = recorder.get()
    if noting is not None:
        noting.log(text, values, where, place)
    elif phase() != "check" and where.here():
        print_line(text, values)


def on_rank(rank: int, callback: Callable[..., Any], *values: Any) -> None:
    """Call a function on one rank, with tensors of the step, from inside a step or anywhere else.

    In a compiled step it is called after the program ran, in order with the step's other effects,
    once a call, with copies of the tensors as they were at this place of the step. An artifact
    holds its name alone, so that it is a function of a module, or one or a method that the step
    itself reaches by name (a global, an argument, what it closes over). What it does and changes is
    no part of the program. In a check nothing is called.

    Args:
        rank: the rank that calls it.
        callback: what it returns is dropped; it must not communicate with other ranks.
        values: tensors and numbers of the step.

    Raises:
        UsageError: no rank, no function, or a value that is neither a tensor nor plain.

    Example:
        >>> on_rank(0, print, 3)
        3
    """
    doing(_on_rank, rank, callback, values)


def _on_rank(rank: int, callback: Callable[..., Any], values: tuple[Any, ...]) -> None:
    place = _asker()
    where = _where(rank, {}, "ls.on_rank", place)
    if not callable(callback):
        raise UsageError(
            "ls.on_rank takes a function",
            where=_line(place),
            got=f"a {type(callback).__name__}",
            fix="ls.on_rank(0, function, loss)",
        )
    _check_values(values, "ls.on_rank", place)
    noting = recorder.get()
    if noting is not None:
        noting.call_on(callback, values, where, place)
    elif phase() != "check" and where.here():
        callback(*[_copied(value) for value in values])


def doing(act: Callable[..., Any], *arguments: Any) -> None:
    """Do it. Under `torch.compile` another takes its place: see `keep_out_of_compiler`."""
    act(*arguments)


@functools.cache
def keep_out_of_compiler() -> None:
    """Let `torch.compile` break its graph at an effect, and never look into one."""
    global doing
    doing = torch.compiler.disable(doing, reason="an effect of Lockstep's")


def _asker() -> Place:
    """The line that asks for an effect: the first outside of this file and of torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(_TORCH):
            break
        frame = frame.f_back
    assert frame is not None
    return Place.of(frame)


def print_line(text: str, values: tuple[Any, ...]) -> None:
    """Print a line as `log` does."""
    print(text.format(*[v.detach() if isinstance(v, torch.Tensor) else v for v in values]))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _where(rank: int | None, places: Mapping[str, int], who: str, place: Place) -> Where:
    if rank is not None and places:
        raise UsageError(f"{who}: a rank and places on axes", where=_line(place), fix="say one")
    wanted = dict(places) or {WORLD: 0 if rank is None else rank}
    for name, number in wanted.items():
        world = name == WORLD and not places
        size = (dist.get_world_size() if dist.is_initialized() else 1) if world else None
        size = axis_named(name).size if size is None else size
        if type(number) is not int or not 0 <= number < size:
            raise UsageError(
                f"{who}: {'rank' if world else name}={number!r}",
                where=_line(place),
                want=f"a number from 0 to {size - 1}",
            )
    return Where(tuple(wanted), (tuple(wanted.values()),))


def _check_values(values: tuple[Any, ...], who: str, place: Place) -> None:
    for value in values:
        if not isinstance(value, (torch.Tensor, *PLAIN)):
            raise UsageError(
                f"{who} takes tensors, numbers and text",
                where=_line(place),
                got=f"a {type(value).__name__}",
                fix="give the tensors in it one by one",
            )


def _check_text(text: str, values: tuple[Any, ...], place: Place) -> None:
    """Refuse a text that does not fit, at its line, on every rank and not only where it prints."""
    try:
        text.format(*[_sample(value) for value in values])
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "ls.log: the text does not fit its values",
            where=_line(place),
            got=f"{text!r}, {len(values)} value(s): {type(error).__name__}: {error}",
            fix='ls.log("loss {:.3f}", loss)',
        ) from None


def _sample(value: Any) -> Any:
    """A value of the same kind, to try a format on."""
    if isinstance(value, torch.Tensor) and value.dim() == 0:
        if value.dtype is torch.bool:
            return True
        return 1 if not (value.is_floating_point() or value.is_complex()) else 1.0
    if isinstance(value, torch.Tensor):
        return _Shown()
    if isinstance(value, torch.SymInt):
        return 1
    return 1.0 if isinstance(value, torch.SymFloat) else value


class _Shown:
    """Stands for a tensor of more than one element, which takes no format."""


def _line(place: Place) -> str:
    return f"{place.file}:{place.line}"
