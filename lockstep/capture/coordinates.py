"""The rank in a trace: one number per axis, of unknown value, that each rank reads as it runs.

What Python then asks of such a number is answered where all ranks would answer alike.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from lockstep import _compat
from lockstep.errors import CaptureError
from lockstep.spmd.ops import COORDINATE

MOST = 256  # combinations of coordinates that are tried, to see whether all ranks decide alike
_ORDERINGS = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class Decision:
    """One decision that Python made by the rank.

    Args:
        names: what it reads of the rank, each with how many values it has.
        answer: the decision at places, by what is read; what is not said is at 0.
        taken: what the trace was told.
        error: how it is refused.
    """

    names: dict[str, int]
    answer: Callable[[dict[str, int]], bool]
    taken: bool
    error: CaptureError


class Coordinates:
    """The numbers that one trace has given out, by the name of what they read.

    Args:
        places: what is taken to be read where Python decides; 0 where it is not said.
        known: axes of which the program holds this rank's own number.

    Example:
        >>> Coordinates().knows(None)
        False
    """

    def __init__(self, places: dict[str, int] | None = None, known: Collection[str] = ()) -> None:
        self._numbers: dict[str, Any] = {}
        self.places, self.known = places or {}, known
        self.decisions: list[Decision] = []
        self.read_at: dict[str, Any] = {}  # "file:line" -> the formula that was read there last
        self._names: dict[Any, tuple[str, int]] = {}  # symbol -> what it reads, how many values

    def read(self, name: str, size: int, line: str = "") -> Any:
        """Return the number that reads `name` at run time, between 0 and `size` - 1.

        Args:
            name: an axis, or "tp@1": the global rank of the rank at place 1 of this rank's "tp".
            line: the user's, where it is read.
        """
        if name not in self._numbers:
            anchor = torch.empty(0, device="cpu")
            made = self._numbers[name] = COORDINATE(anchor, name, size)
            self._names[_compat.expression(made)] = (name, size)
        self.read_at[line] = _compat.expression(self._numbers[name])
        return self._numbers[name]

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def knows(self, formula: Any) -> bool:
        """Whether a formula depends on coordinates, and on nothing else."""
        symbols: Any = getattr(formula, "free_symbols", set())
        return bool(symbols) and symbols <= self._names.keys()

    def name_of(self, number: Any) -> str | None:
        """What a number reads, if it is one of those given out and not computed from them."""
        known = self._names.get(_compat.expression(number))
        return known[0] if known is not None else None

    def shown(self, formula: Any) -> str:
        """A formula with the names of what is read: "tp < 2"."""
        words = str(formula)
        if getattr(formula, "is_Relational", False):
            words = f"{formula.lhs} {formula.rel_op} {formula.rhs}"
        for symbol, (name, _) in self._names.items():
            words = words.replace(str(symbol), name)
        return words

    def settled(self, formula: Any) -> Any:
        """The value that a formula has on every rank; None where the ranks differ, or too many.

        In a world of one only an ordering is settled, as `rank < world`: what asks whether a rank
        is this one or that would differ in a larger world.
        """
        if not getattr(formula, "free_symbols", None):
            return formula
        symbols = sorted(formula.free_symbols, key=str)
        least = 1 if getattr(formula, "rel_op", "") in _ORDERINGS else 2
        sizes = [max(self._names[symbol][1], least) for symbol in symbols]
        if math.prod(sizes) > MOST:
            return None
        values = {
            formula.subs(dict(zip(symbols, places, strict=True)))
            for places in itertools.product(*map(range, sizes))
        }
        return values.pop() if len(values) == 1 else None

    def decide(self, formula: Any, error: CaptureError) -> bool:
        """Answer a decision as a rank at this trace's places would, and note it."""
        names = {symbol: self._names[symbol][0] for symbol in formula.free_symbols}
        sizes = {name: max(size, 2) for name, size in sorted(map(self._names.__getitem__, names))}

        def answer(places: dict[str, int]) -> bool:
            return bool(formula.subs({s: places.get(name, 0) for s, name in names.items()}))

        self.decisions.append(Decision(sizes, answer, answer(self.places), error))
        return self.decisions[-1].taken

    def at_place(self, formula: Any) -> Any:
        """The value that a formula has where the trace is taken to be."""
        names = {symbol: self._names[symbol][0] for symbol in formula.free_symbols}
        return formula.subs({s: self.places.get(name, 0) for s, name in names.items()})

    def holds(self, formula: Any) -> bool:
        """Whether a formula is true on every rank; true where there are too many to try."""
        symbols = sorted(formula.free_symbols, key=str)
        sizes = [self._names[symbol][1] for symbol in symbols]
        if math.prod(sizes) > MOST:  # both ends, and what lies next to them
            ends = [sorted({0, 1, size - 2, size - 1} & set(range(size))) for size in sizes]
        else:
            ends = [list(range(size)) for size in sizes]
        return all(
            bool(formula.subs(dict(zip(symbols, places, strict=True))))
            for places in itertools.product(*ends)
        )


_current: ContextVar[Coordinates | None] = ContextVar("coordinates", default=None)


@contextlib.contextmanager
def giving_out(coordinates: Coordinates) -> Iterator[None]:
    """Let `place_of` know these numbers while inside."""
    token = _current.set(coordinates)
    try:
        yield
    finally:
        _current.reset(token)


def place_of(rank: Any, axis: str, ranks: tuple[int, ...]) -> int | None:
    """The place on an axis of a global rank, as a step has it; None: it is not on the axis.

    Args:
        rank: an int, or a number of the trace as `dist.get_global_rank(group, 0)` gives it.
        ranks: the axis' ranks here.
    """
    if not isinstance(rank, torch.SymInt):
        return ranks.index(rank) if rank in ranks else None
    coordinates = _current.get()
    name = (coordinates.name_of(rank) if coordinates is not None else None) or ""
    read, _, place = name.partition("@")
    return int(place) if read == axis and place else None
