"""Python that wants to know which rank it is: branches, loops, keys, text. Refused at its line.

A trace takes one side of a branch, and would ship it to the ranks of the other one. Where all ranks
decide alike, as in `rank < world`, the answer is given.
"""

from __future__ import annotations

import contextlib
import linecache
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.obstacles import line_of_error
from lockstep.capture.origin import (
    is_own_file,
    is_torch_file,
    is_user_file,
    line_of,
    short_path,
    user_frame,
)
from lockstep.capture.refusal import collector, refuse
from lockstep.capture.source import branch_only_calls, expression_values
from lockstep.errors import CaptureError, LockstepError

# What Python calls -> what it does with the number, and what to write instead.
_BRANCH = (
    "branches on its rank",
    [
        "compute both sides and choose: torch.where(torch.tensor(rank == 0), a, b)",
        "do what depends on the rank outside the step",
    ],
)
_TELLS = [
    'ls.log("loss {:.3f}", loss, rank=0) in place of the branch',
    "ls.on_rank(0, callback, loss), whose callback does what it likes on that rank",
]
_NUMBER = (
    "turns its rank into a Python number",
    [
        "use it in arithmetic and slices as it is, without int() or float()",
        "in place of a list or a range: torch.tensor([...])[rank], torch.arange(n) < rank",
        "do what depends on the rank outside the step",
    ],
)
_KEY = (
    "looks something up by its rank",
    [
        "put the values into a tensor: torch.tensor([...])[rank]",
        "do what depends on the rank outside the step",
    ],
)
_METHODS: dict[str, tuple[str, list[str]]] = {
    "__bool__": _BRANCH,
    "__int__": _NUMBER,
    "__index__": _NUMBER,
    "__float__": _NUMBER,
    "__hash__": _KEY,
}
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_STAND_INS: dict[str, Any] = {
    "__int__": 0, "__index__": 0, "__float__": 0.0, "__hash__": 0,
}  # fmt: skip


@contextlib.contextmanager
def deciding(coordinates: Coordinates, mode: Any) -> Iterator[None]:
    """Answer or refuse what user code asks of the numbers in `coordinates`, while inside.

    Args:
        mode: the trace's fake mode, which knows what was taken to hold of them.

    Raises:
        CaptureError: the ranks would answer differently; or an operator goes out of bounds on one.
    """
    refused: list[CaptureError] = []
    swaps: dict[FunctionType, Callable[..., Any]] = {}
    for kind in _NUMBERS:
        for name in _METHODS:
            method = vars(kind).get(name)
            if isinstance(method, FunctionType):
                swaps[method] = _Decision(coordinates, name, refused)
    try:
        with swapped(swaps):
            yield
    except LockstepError:
        raise
    except Exception as error:
        formula = _compat.undecided(error)
        if not coordinates.knows(formula):
            formula = _stumbled_over(coordinates, error)
        if formula is None:
            raise
        raise _error(coordinates, formula, _NUMBER, where=line_of_error(error)) from error
    if refused and collector() is None:
        raise refused[0]  # the step has caught it, and gone on with something else
    _refuse_out_of_bounds(coordinates, mode)


class _Decision:
    """One method of torch's numbers, asked of a number that depends on the rank."""

    def __init__(self, coordinates: Coordinates, name: str, refused: list[CaptureError]) -> None:
        self._coordinates, self._name, self._refused = coordinates, name, refused

    def __call__(self, original: Any, args: Any, kwargs: Any) -> Any:
        number, frame = args[0], _asker(caller_frame())
        if frame is None or not self._coordinates.knows(_compat.expression(number)):
            return original(*args, **kwargs)
        return self.answer(number, frame)

    def answer(self, number: Any, frame: FrameType) -> Any:
        """What all ranks would get; else the refusal, and a stand-in where refusals are kept."""
        if self._name == "__bool__" and not isinstance(number, torch.SymBool):
            number = number != 0
        formula = _compat.expression(number)
        known = self._coordinates.settled(formula)
        if known is not None:
            return _converted(self._name, known)
        told = _METHODS[self._name]
        if self._name == "__bool__" and branch_only_calls(user_frame(frame)):
            told = (told[0], [*_TELLS, *told[1]])
        error = _error(self._coordinates, formula, told, frame=frame)
        if self._name == "__bool__":
            return self._coordinates.decide(formula, error)
        self._refused.append(error)
        refuse(error)
        return _STAND_INS.get(self._name)


def _converted(name: str, known: Any) -> Any:
    if name == "__bool__":
        return bool(known)
    return float(known) if name == "__float__" else int(known)


def _asker(frame: FrameType | None) -> FrameType | None:
    """The frame that asks, past this package's own; None where torch does."""
    while frame is not None and is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or is_torch_file(frame.f_code.co_filename):
        return None
    return frame


def _error(
    coordinates: Coordinates,
    formula: Any,
    told: tuple[str, list[str]],
    frame: FrameType | None = None,
    where: str | None = None,
) -> CaptureError:
    users = user_frame(frame)
    line = linecache.getline(users.f_code.co_filename, users.f_lineno).strip() if users else ""
    shown = coordinates.shown(formula)
    return CaptureError(
        f"the step {told[0]}: {shown}",
        where=where or line_of(users),
        got=line or None,
        why="what one rank gets would be shipped to all of them",
        fix=told[1],
    )


def _stumbled_over(coordinates: Coordinates, error: Exception) -> Any:
    """The number of the trace that made a function fail which takes Python's numbers only.

    It is one that the function's frame holds, or one of the line of the user's that called it.
    """
    if not isinstance(error, (TypeError, IndexError, ValueError, RuntimeError)):
        return None
    trace, found = error.__traceback__, None
    while trace is not None:
        frame = trace.tb_frame
        if is_user_file(frame.f_code.co_filename):
            line = line_of(frame).rpartition(":")[0] + f":{trace.tb_lineno}"
            found = coordinates.read_at.get(line)
            held = [value for _, value in expression_values(frame, trace.tb_lineno)]
        else:
            held = list(frame.f_locals.values())
        formulas = [_compat.expression(value) for value in held if isinstance(value, _NUMBERS)]
        found = next((f for f in formulas if coordinates.knows(f)), found)
        trace = trace.tb_next
    return found if not is_torch_file(_innermost(error)) or "SymInt" in str(error) else None


def _innermost(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""


def _refuse_out_of_bounds(coordinates: Coordinates, mode: Any) -> None:
    """Refuse what torch could not prove, took to hold, and would find false on a real rank."""
    for formula, stack in _compat.assumptions(mode):
        if coordinates.knows(formula) and not coordinates.holds(formula):
            refuse(
                CaptureError(
                    f"a slice by the rank leaves its tensor: not {coordinates.shown(formula)}",
                    where=_users_line(stack),
                    why="on some rank, where eager fails and a program would read other memory",
                    fix="let every rank's slice lie within the tensor",
                )
            )


def _users_line(stack: str) -> str | None:
    """The innermost user line of a stack that torch formatted."""
    found = None
    for line in stack.splitlines():
        words = line.strip().split('"')
        if line.strip().startswith("File ") and is_user_file(words[1]):
            number = words[2].split("line ")[1].split(",")[0]
            found = f"{short_path(words[1])}:{number}"
    return found
