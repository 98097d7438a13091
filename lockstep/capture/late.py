"""Numbers that Python's own functions make of a step's values: `round(x.item(), 2)`, `math.exp`.

No graph holds these functions. What they make can be told, and computed with in order to be told;
the host computes it as the program runs. Where a tensor meets it, it is refused at its line.
"""

from __future__ import annotations

import contextlib
import math
import operator
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from lockstep import _compat
from lockstep.capture.origin import is_user_file, line_of, user_frame
from lockstep.errors import CaptureError

if TYPE_CHECKING:
    from lockstep.capture.emits import Emits

Json = Any
_MATH = ("exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "pow", "floor", "ceil", "isnan",
         "isfinite", "isinf", "fabs", "trunc")  # fmt: skip
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)

# A word of what the host computes -> the function, beside those of `emits.HOST`.
MADE: dict[str, Callable[..., Any]] = {f"math.{name}": getattr(math, name) for name in _MATH}


class Late:
    """A number that the host makes of a step's values; `what` says how, as it is written down."""

    def __init__(self, emits: Emits, what: Json) -> None:
        self._emits, self.what = emits, what

    def made(self, word: str, *parts: Any) -> Late:
        """Return what a function makes of this number and others."""
        return Late(self._emits, [word, *map(self._emits.written, parts)])

    def __repr__(self) -> str:
        return self._emits.marks.mark(self, "", sys._getframe(1))

    def __format__(self, spec: str) -> str:
        return self._emits.marks.mark(self, spec, sys._getframe(1))

    def __round__(self, digits: int | None = None) -> Late:
        return self.made("round", self, digits)

    def __neg__(self) -> Late:
        return self.made("neg", self)

    def __abs__(self) -> Late:
        return self.made("abs", self)

    def _is_read(self, *_others: Any) -> Any:
        raise _read_error(user_frame(sys._getframe(1)))

    def __float__(self) -> float:
        frame = sys._getframe(1)
        found = self._emits.marks.number(self, frame, whole=False)
        return float(found) if found is not None else self._is_read()

    def __int__(self) -> int:
        frame = sys._getframe(1)
        found = self._emits.marks.number(self, frame, whole=True)
        return int(found) if found is not None else self._is_read()

    __bool__ = __index__ = _is_read
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _is_read
    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, *_: Any, **__: Any) -> Any:
        raise _read_error(user_frame(sys._getframe(1)))


def _operator(word: str, swapped: bool) -> Callable[[Late, Any], Any]:
    def compute(self: Late, other: Any) -> Any:
        if not isinstance(other, (int, float, Late, *_NUMBERS)):
            return NotImplemented
        return self.made(word, other, self) if swapped else self.made(word, self, other)

    return compute


for _name in _BINARY:
    assert hasattr(operator, _name)
    setattr(Late, f"__{_name}__", _operator(_name, swapped=False))
    setattr(Late, f"__r{_name}__", _operator(_name, swapped=True))


@contextlib.contextmanager
def computing(emits: Emits, of_rank: Callable[[Any], bool]) -> Iterator[None]:
    """Let user code on this thread use Python's functions on a step's values while inside.

    Args:
        of_rank: whether a formula depends on the rank: such a number is another's to answer for.
    """

    def is_late(number: Any) -> bool:
        if isinstance(number, Late):
            return True
        formula = _compat.expression(number) if isinstance(number, _NUMBERS) else None
        return bool(getattr(formula, "free_symbols", None)) and not of_rank(formula)

    before = {name: getattr(math, name) for name in _MATH}
    rounds = {kind: vars(kind)["__round__"] for kind in (torch.SymFloat, torch.SymInt)}
    try:
        for name, original in before.items():
            setattr(math, name, _function(emits, name, original, is_late))
        for kind, original in rounds.items():
            kind.__round__ = _rounded(emits, original, is_late)  # type: ignore[assignment]
        yield
    finally:
        for name, original in before.items():
            setattr(math, name, original)
        for kind, original in rounds.items():
            kind.__round__ = original  # type: ignore[assignment]


def _rounded(emits: Emits, original: Any, is_late: Callable[[Any], bool]) -> Any:
    def rounded(self: Any, digits: int | None = None) -> Any:
        if not _is_users(sys._getframe(1)) or not is_late(self):
            return original(self, digits)
        return Late(emits, ["round", emits.written(self), ["value", digits]])

    return rounded


def _function(emits: Emits, name: str, original: Any, is_late: Callable[[Any], bool]) -> Any:
    def compute(*args: Any) -> Any:
        if not any(map(is_late, args)) or not _is_users(sys._getframe(1)):
            return original(*args)
        return Late(emits, [f"math.{name}", *map(emits.written, args)])

    return compute


def _is_users(frame: FrameType | None) -> bool:
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _read_error(frame: FrameType | None) -> CaptureError:
    return CaptureError(
        "the step looks at a number that Python made of a tensor's value",
        where=line_of(frame),
        why="the value differs between calls and ranks, and one program must fit all of them",
        fix=[
            "compute it with torch, on the tensor: torch.exp(loss), torch.round(loss, decimals=2)",
            "print it or log it as it is",
            "ls.on_rank(0, callback, loss): the callback may look at the value",
        ],
    )
