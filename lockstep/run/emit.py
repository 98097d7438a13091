"""Do what a step tells or calls beside its computation, after its program ran, on this rank.

The manifest says what, as lists: see `capture/emits.py`. Nothing of it is code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from lockstep.capture.binding import Call
from lockstep.capture.emits import HOST
from lockstep.capture.named import found_by
from lockstep.run.key import Bound
from lockstep.spmd.effects import Where, place_here, print_line

Json = Any
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    word: function for function, word in HOST.items() if hasattr(operator, word)
} | {
    "float": float, "int": int, "max": max, "min": min, "not": operator.not_, "round": round,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
}  # fmt: skip


class Emission:
    """The effects of one program, and which of them are this rank's.

    Args:
        emits: as in the manifest's contract.
    """

    def __init__(self, emits: Sequence[dict[str, Any]]) -> None:
        self._all = emits

    @cached_property
    def _mine(self) -> list[dict[str, Any]]:
        return [emit for emit in self._all if _where(emit["where"]).here()]

    def run(self, outputs: Sequence[Any], call: Call, bound: Bound) -> None:
        """Do this rank's, in order.

        Args:
            outputs: the program's.
            call, bound: where the functions that are called are found.
        """
        if not self._all:
            return
        for emit in self._mine:
            _DOES[emit["do"]](emit, [value(what, outputs) for what in emit["what"]], call, bound)


def _where(words: dict[str, Any]) -> Where:
    places = tuple(tuple(combination) for combination in words["places"])
    return Where(tuple(words["names"]), places, words["inside"])


def value(what: Json, outputs: Sequence[Any]) -> Any:
    """Make a value of a program's outputs, as it was written down."""
    word, *rest = what
    if word == "value":
        return rest[0]
    if word == "tensor":
        return outputs[rest[0]]
    if word == "item":
        found = outputs[rest[0]]
        return found.item() if isinstance(found, torch.Tensor) else found
    if word == "place":
        return place_here(rest[0])
    return _FUNCTIONS[word](*[value(part, outputs) for part in rest])


def _log(emit: dict[str, Any], values: list[Any], _call: Call, _bound: Bound) -> None:
    print_line(values[0], tuple(values[1:]))


def _do_call(emit: dict[str, Any], values: list[Any], call: Call, bound: Bound) -> None:
    found_by(emit["name"], bound.step, call)(*values)


_DOES: dict[str, Callable[[dict[str, Any], list[Any], Call, Bound], None]] = {
    "log": _log,
    "call": _do_call,
}
