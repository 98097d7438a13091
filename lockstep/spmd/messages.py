"""Messages from neighbour to neighbour along a mesh axis, as the stages of a pipeline send them.

    ls.send(hidden, "pp", to=+1)                # on the first stage
    hidden = ls.recv(like, "pp", from_=-1)      # on the second

The n-th message that a rank sends to a place is the n-th that the rank there takes from this one.
No gradient goes through a message: it is sent back as one of its own.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.errors import CaptureError, UsageError
from lockstep.spmd import claims, point_to_point
from lockstep.spmd.mesh import axis as axis_named


@dataclass
class Line:
    """The messages of one call of a step, in order.

    Args:
        last: what the last one gave: the next one comes after it.
        open: where something was sent since the last `settle`; "" where nothing was.
    """

    last: torch.Tensor | None = None
    open: str = ""
    _sent: Counter[tuple[str, int]] = field(default_factory=Counter)
    _taken: Counter[tuple[str, int]] = field(default_factory=Counter)

    def send(self, x: torch.Tensor, axis: str, to: int, place: str) -> None:
        """Start a message."""
        number = self._sent[axis, to]
        self._sent[axis, to] += 1
        with torch.no_grad():
            self.last = point_to_point.SEND(x, self.last, axis, to, number)
        self.open = place

    def recv(self, like: torch.Tensor, axis: str, from_: int) -> torch.Tensor:
        """Wait for a message."""
        number = self._taken[axis, from_]
        self._taken[axis, from_] += 1
        with torch.no_grad():
            found: torch.Tensor = point_to_point.RECV(like, self.last, axis, from_, number)
        self.last = found
        return found

    def settle(self, x: torch.Tensor) -> torch.Tensor:
        """Wait for all that was sent; the next step counts from the start again."""
        with torch.no_grad():
            done: torch.Tensor = point_to_point.SETTLE(x, self.last)
        self.last, self.open = done, ""
        self._sent.clear()
        self._taken.clear()
        return done

    def refuse_open(self) -> None:
        """Refuse a step that ends with messages that nothing waits for.

        Raises:
            CaptureError: names the line of the last one.
        """
        if self.open:
            raise CaptureError(
                "the step sends, and never calls ls.settle",
                where=self.open,
                why="what is sent must have left before its memory is used again",
                fix="loss = ls.settle(loss)   after the last message",
            )


_eager = Line()
_now: ContextVar[Line | None] = ContextVar("lockstep_messages", default=None)


@contextlib.contextmanager
def line_of_step() -> Iterator[Line]:
    """Give the step that is captured inside a line of messages of its own."""
    line = Line()
    token = _now.set(line)
    try:
        yield line
    finally:
        _now.reset(token)


def send(x: torch.Tensor, axis: str, *, to: int) -> None:
    """Start to send a tensor to the rank that is `to` places further along an axis.

    The tensor may be changed at once: a copy travels. Beyond the last place comes the first. Call
    `ls.settle` once after the last message of the step.

    Args:
        x: of the shape that the other rank expects; on the CPU.
        axis: a mesh axis, which is one of `roles=` where ranks send differently.
        to: 1 for the next rank, -1 for the one before.

    Raises:
        UsageError: an unknown axis, the rank itself, or a tensor that is not on the CPU.

    Example:
        >>> send(hidden, "pp", to=+1)                                        # doctest: +SKIP
    """
    _check(x, axis, to, "ls.send", "to")
    place = claims.Place.of(sys._getframe(1))
    (_now.get() or _eager).send(x, axis, to, f"{place.file}:{place.line}")


def recv(like: torch.Tensor, axis: str, *, from_: int) -> torch.Tensor:
    """Wait for the next tensor from the rank that is `from_` places further along an axis.

    Args:
        like: gives shape and dtype; its values are not read.
        axis: a mesh axis.
        from_: -1 for the rank before, 1 for the next one.

    Returns:
        A new tensor, V along every axis, without a gradient: `requires_grad_()` begins one.

    Raises:
        UsageError: an unknown axis, the rank itself, or a tensor that is not on the CPU.

    Example:
        >>> hidden = recv(like, "pp", from_=-1)                              # doctest: +SKIP
    """
    _check(like, axis, from_, "ls.recv", "from_")
    return (_now.get() or _eager).recv(like, axis, from_)


def settle(x: torch.Tensor) -> torch.Tensor:
    """Wait until everything that the step has sent has left, once after its last message.

    Args:
        x: any tensor.

    Returns:
        A copy of `x` without a gradient, which is there when all messages are: a collective of it
        along the same axis comes after them on every rank.

    Example:
        >>> settle(torch.ones(2)).tolist()
        [1.0, 1.0]
    """
    return (_now.get() or _eager).settle(x)


def _check(x: Any, axis: str, place: Any, who: str, name: str) -> None:
    size = axis_named(axis).size
    if type(place) is not int or not 0 < abs(place) < max(size, 2):
        raise UsageError(
            f"{who} with {name}={place!r} along {axis}",
            got=f"{size} rank(s) along {axis}",
            want=f"another rank: {name}=1 is the next, {name}=-1 the one before",
        )
    if x.device.type != "cpu":
        raise UsageError(
            f"{who} of a tensor on {x.device.type}",
            want="one on the CPU: messages between accelerators are not there yet",
            why="two that go both ways at the same time would wait for each other",
        )
