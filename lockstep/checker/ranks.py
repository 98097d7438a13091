"""Ranks and groups of a mesh, by arithmetic on coordinates alone."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from lockstep.spmd import mesh as axes


def coordinates(mesh: Mapping[str, int]) -> list[dict[str, int]]:
    """The coordinate of every rank, row-major.

    Example:
        >>> coordinates({"dp": 1, "tp": 2})
        [{'dp': 0, 'tp': 0}, {'dp': 0, 'tp': 1}]
    """
    places = itertools.product(*map(range, mesh.values()))
    return [dict(zip(mesh, place, strict=True)) for place in places]


def group_of(
    places: Sequence[Mapping[str, int]], mesh: Mapping[str, int], rank: int, axis: str
) -> list[int]:
    """The ranks of a rank's group along an axis, by coordinate; "world" is all of them."""
    over = list(mesh) if axis == axes.WORLD else [axis]
    here = places[rank]
    return [
        at
        for at, place in enumerate(places)
        if all(place[name] == here[name] for name in mesh if name not in over)
    ]
