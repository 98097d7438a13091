"""Run one call of a typed collective: its actions are found once, and autograd is told of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from lockstep.spmd import claims
from lockstep.spmd.mesh import Axis, _axes
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.plans import plan
from lockstep.spmd.transitions import Move
from lockstep.spmd.types import V

# Verb, axis and the further arguments of `plan`: defaults at the end may be left out.
Wanted = tuple[Any, ...]
MOST_SHAPES = 1024  # remembered of each call; beyond, they are made again


class _Shapes:
    """The actions of one call, by the shape of its tensor."""

    def __init__(self, of_shape: Callable[[torch.Size], Move]) -> None:
        self._of_shape = of_shape
        self._made: dict[torch.Size, Move] = {}

    def move(self, shape: torch.Size) -> Move:
        try:
            made = self._made.get(shape)
        except TypeError:  # a symbolic size is no key
            return self._of_shape(shape)
        if made is None:
            if len(self._made) >= MOST_SHAPES:
                self._made.clear()
            made = self._made[shape] = _with_function(self._of_shape(shape))
        return made


# With the axis as it was, since a mesh may be made anew under the same names.
_made: dict[Wanted, tuple[Axis, Move | _Shapes]] = {}


def call(x: torch.Tensor, wanted: Wanted, async_op: bool = False) -> Any:
    """Run a row of the table, or start it; in a recording, note it at the caller's caller.

    Raises:
        UsageError: the table, the axis or the tensor does not admit it.
    """
    try:
        known = _made.get(wanted)
    except TypeError:  # splits of symbolic size are no key
        known = None
    if known is not None and known[0] is _axes.get(wanted[1]):
        made: Any = known[1]
    else:
        made = _first(wanted)
    move = made if made.__class__ is Move else _of_shape(made, x.shape)
    if claims.recording is None and not async_op:
        return run(x, move)
    note = _noting(wanted, sys._getframe(2))
    if async_op:
        return Started(x, move, note)
    out = run(x, move)
    note(x, out)
    return out


def _first(wanted: Wanted) -> Any:
    """Check a call that is the first of its kind, and remember what it means."""
    over = axis_named(wanted[1])
    made = plan(over, *wanted)
    from_data = wanted[0] == "all_to_all" and wanted[2] is V and wanted[6] is not None
    if from_data or torch.compiler.is_compiling():  # other splits at each call: nothing to keep
        return made
    kept = _with_function(made) if isinstance(made, Move) else _Shapes(made)
    _made[wanted] = over, kept
    return kept


def _of_shape(made: Any, shape: torch.Size) -> Move:
    return made.move(shape) if made.__class__ is _Shapes else made(shape)


def run(x: torch.Tensor, move: Move) -> torch.Tensor:
    """Run the forward of a row, and have autograd run its backward."""
    if not x.requires_grad:
        return move.forward.run(x)
    if move.function is not None:
        return move.function.apply(x)
    return _Moved.apply(x, move, None)


class _Moved(torch.autograd.Function):
    """Any row; the gradient goes through the row of the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, move: Move, started: torch.Tensor | None) -> Any:
        ctx.move = move
        if started is None:
            return move.forward.run(x)
        return move.forward.finish(started, x.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return run(grad, ctx.move.flipped), None, None


def _with_function(move: Move) -> Move:
    """Give a row a Function of its own: with nothing to pass, it costs what a hand-written does."""
    go, flipped = move.forward.run, move.flipped

    class Row(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return go(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return run(grad, flipped)

    move.function = Row
    return move


class Started:
    """A typed collective under way, as `async_op=True` returns it.

    Between the call and `wait()` the input must not be changed. The gradient goes to the input,
    through the same row of the table as without `async_op`, not overlapped.
    """

    def __init__(self, x: torch.Tensor, move: Move, note: Callable[..., None]) -> None:
        self._x, self._move, self._note = x, move, note
        self._result: torch.Tensor | None = None
        with torch.no_grad():
            self._started = move.forward.start(x)

    def wait(self) -> torch.Tensor:
        """Return the result once it is there; the same one at a second call."""
        if self._result is None:
            self._result = self._finished()
            self._note(self._x, self._result)
            del self._x, self._started
        return self._result

    def _finished(self) -> torch.Tensor:
        if self._x.requires_grad and torch.is_grad_enabled():
            return _Moved.apply(self._x, self._move, self._started)
        return self._move.forward.finish(self._started, self._x.shape)


def _say_nothing(before: torch.Tensor, after: torch.Tensor) -> None:
    pass


def _noting(wanted: Wanted, frame: FrameType) -> Callable[..., None]:
    """Return what notes a call's two tensors in the recording that is open now, if any is."""
    said = claims.recorder()
    if said is None:
        return _say_nothing
    verb, axis, src, dst = wanted[:4]
    place = claims.Place.of(frame)
    op = (wanted[4] if len(wanted) > 4 else None) or ("avg" if src.factor == "mean" else "sum")

    def note(before: torch.Tensor, after: torch.Tensor) -> None:
        said.moves.append(claims.Moved(verb, axis, src, dst, op, before, after, place))

    return note
