"""Do what a step tells or calls beside its computation, after its program ran, on this rank.

The manifest says what, as lists: see `capture/emits.py`. Nothing of it is code.
"""

from __future__ import annotations

import logging
import math
import operator
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from lockstep.capture.binding import Call
from lockstep.capture.emits import HOST
from lockstep.capture.late import MADE
from lockstep.capture.named import found_by
from lockstep.run.key import Bound
from lockstep.spmd.effects import Where, place_here, print_line

Json = Any
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    word: function for function, word in HOST.items() if hasattr(operator, word)
} | {
    "float": float, "int": int, "max": max, "min": min, "not": operator.not_, "round": round,
    "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc, **MADE,
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
        return [emit for emit in self._all if all(map(_is_here, emit["where"]))]

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


def _is_here(words: dict[str, Any]) -> bool:
    places = tuple(tuple(combination) for combination in words["places"])
    return Where(tuple(words["names"]), places, words["inside"]).here()


def value(what: Json, outputs: Sequence[Any]) -> Any:
    """Make a value of a program's outputs, as it was written down.

    Example:
        >>> value(["text", "loss ", ["shown", ["item", 0], ".2f"]], [torch.tensor(0.5)])
        'loss 0.50'
    """
    word, *rest = what
    if word == "value":
        return rest[0]
    if word == "text":
        return "".join(part if isinstance(part, str) else value(part, outputs) for part in rest)
    if word == "shown":
        return _shown(value(rest[0], outputs), rest[1])
    if word == "percent":
        return str(rest[1] % value(rest[0], outputs))
    if word == "tensor":
        return outputs[rest[0]]
    if word == "item":
        found = outputs[rest[0]]
        return found.item() if isinstance(found, torch.Tensor) else found
    if word == "place":
        return place_here(rest[0])
    if word == "said":
        return _Said(*[value(text, outputs) for text in rest])
    if word == "dict":
        return {value(k, outputs): value(v, outputs) for k, v in rest}
    parts = [value(part, outputs) for part in rest]
    if word in ("list", "tuple"):
        return parts if word == "list" else tuple(parts)
    return _FUNCTIONS[word](*parts)


def _shown(found: Any, spec: str | None) -> str:
    return repr(found) if spec is None else format(found, spec)


class _Said:
    """Stands for an object of the step whose text alone is known."""

    def __init__(self, text: str, representation: str) -> None:
        self._text, self._representation = text, representation

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._representation


def _log(emit: dict[str, Any], values: list[Any], _call: Call, _bound: Bound) -> None:
    print_line(values[0], tuple(values[1:]))


def _do_call(emit: dict[str, Any], values: list[Any], call: Call, bound: Bound) -> None:
    found_by(emit["name"], bound.step, call)(*values)


def _method(emit: dict[str, Any], values: list[Any], call: Call, bound: Bound) -> None:
    args, kwargs = values
    found_by(emit["name"], bound.step, call)(*args, **kwargs)


def _write(emit: dict[str, Any], values: list[Any], _call: Call, _bound: Bound) -> None:
    getattr(sys, emit["name"]).write(values[0])


def _logging(emit: dict[str, Any], values: list[Any], _call: Call, _bound: Bound) -> None:
    """Log as the step's line would, by this rank's own level and handlers."""
    name, (message, args, extra) = emit["name"], values
    logger = logging.getLogger(name["logger"])
    if name["configures"] and not logging.root.handlers:
        logging.basicConfig()
    if not logger.isEnabledFor(name["level"]):
        return
    module = sys.modules.get(name["module"])
    file = getattr(module, "__file__", None) or emit["line"].rpartition(":")[0]
    at = name["level"], file, name["lineno"]
    record = logger.makeRecord(logger.name, *at, message, args, None, name["function"], extra)
    logger.handle(record)


_DOES: dict[str, Callable[[dict[str, Any], list[Any], Call, Bound], None]] = {
    "log": _log,
    "call": _do_call,
    "method": _method,
    "write": _write,
    "logging": _logging,
}
