"""Whole numbers of each rank, as a formula: a number at the origin, and so many more at each step
along an axis.

`rank * 4` that a constructor read is 0 on one rank and 4 on the next; as `4*tp` it is one value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from lockstep.spmd.mesh import WORLD, Axis

LARGEST = 1 << 62  # of a number in a graph

Place = Mapping[str, int]  # axis -> coordinate, and "world" -> the global rank


@dataclass(frozen=True)
class Affine:
    """`first + sum(per[axis] * coordinate along it)`.

    Example:
        >>> formula = Affine(1, {"tp": 4})
        >>> formula.at({"dp": 3, "tp": 2}), str(formula)
        (9, '4*tp + 1')
    """

    first: int
    per: Mapping[str, int] = field(default_factory=dict)

    def at(self, place: Place) -> int:
        """The number on the rank at a place."""
        return self.first + sum(by * place[axis] for axis, by in self.per.items())

    def record(self) -> dict[str, Any]:
        """As a JSON value, which stands where each rank has a number of its own."""
        return {"at the origin": self.first, "more per": dict(self.per)}

    def __str__(self) -> str:
        words = [axis if by == 1 else f"{by}*{axis}" for axis, by in self.per.items()]
        words += [str(self.first)] if self.first or not words else []
        return " + ".join(words).replace("+ -", "- ")


def read_affine(value: Any) -> Affine | None:
    """The formula of a JSON value that `record` gave; None for any other value.

    Example:
        >>> str(read_affine(Affine(0, {"dp": -2}).record())), read_affine({"first": 0})
        ('-2*dp', None)
    """
    if not isinstance(value, dict) or value.keys() != {"at the origin", "more per"}:
        return None
    first, per = value["at the origin"], value["more per"]
    numbers = [first, *(per.values() if isinstance(per, dict) else [None])]
    return Affine(first, per) if all(type(number) is int for number in numbers) else None


def fitted(values: Sequence[int], places: Sequence[Place]) -> Affine | None:
    """The formula that gives every rank its number; None where there is none.

    Args:
        values, places: by rank. The mesh's axes are tried first, then the rank in the world.

    Example:
        >>> ranks = [{"tp": 0, "world": 0}, {"tp": 1, "world": 1}, {"tp": 2, "world": 2}]
        >>> str(fitted([1, 5, 9], ranks)), fitted([0, 1, 4], ranks)
        ('4*tp + 1', None)
    """
    axes = [axis for axis in places[0] if axis != WORLD]
    if any(place.keys() != places[0].keys() for place in places):
        return None
    return _fit(values, places, axes) or _fit(values, places, [WORLD])


def _fit(values: Sequence[int], places: Sequence[Place], axes: list[str]) -> Affine | None:
    """From the origin and its neighbours; then every rank has its say."""
    at = {tuple(place[axis] for axis in axes): v for v, place in zip(values, places, strict=True)}
    origin = (0,) * len(axes)
    if origin not in at or max(map(abs, values)) >= LARGEST:
        return None
    steps = {axis: tuple(int(axis == other) for other in axes) for axis in axes}
    per = {axis: at[step] - at[origin] for axis, step in steps.items() if step in at}
    found = Affine(at[origin], {axis: by for axis, by in per.items() if by})
    right = (found.at(place) == value for value, place in zip(values, places, strict=True))
    return found if all(right) else None


def place_here(axes: Iterable[Axis]) -> dict[str, int]:
    """Where this rank is: its coordinate along each of these axes, and its rank in the world."""
    return {axis.name: axis.group.rank() for axis in axes} | {WORLD: dist.get_rank()}
