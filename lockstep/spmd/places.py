"""Where ranks can be: what each of them reads of the world and of mesh axes, told on any one rank.

Axes of one mesh belong together: on 2 x 2 ranks there are four places, and none at rank 0 of the
world and 1 of an axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import torch.distributed as dist

from lockstep.spmd.mesh import WORLD
from lockstep.spmd.mesh import axis as axis_named

Place = dict[str, int]


def places_of(sizes: Mapping[str, int], most: int) -> list[Place] | None:
    """Every combination of what ranks read under some names; None where there are too many.

    Args:
        sizes: name ("world", an axis, "tp@1") -> how many values it is taken to have. More than
            there are ranks along it: values that no rank has, each with every place that is.
        most: of combinations.

    Example:
        >>> places_of({}, 8)
        [{}]
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    readers = {name: _reader(name) for name in sizes}
    known = {n: r for n, r in readers.items() if r is not None and _values(n) == sizes[n]}
    free = {name: range(size) for name, size in sizes.items() if name not in known}
    if ranks * math.prod(map(len, free.values())) > most:
        return None
    real = {tuple(read(rank) for read in known.values()) for rank in range(ranks)}
    found = []
    for values in sorted(real):
        for others in itertools.product(*free.values()):
            place = {
                **dict(zip(known, values, strict=True)),
                **dict(zip(free, others, strict=True)),
            }
            found.append({name: place[name] for name in sizes})
    return found


def _values(name: str) -> int:
    axis, _, at = name.partition("@")
    if at or axis == WORLD:
        return dist.get_world_size()
    return axis_named(axis).size


def _reader(name: str) -> Callable[[int], int] | None:
    """What a rank reads under a name, by its number; None where this rank can't tell of others."""
    axis, _, at = name.partition("@")
    if axis == WORLD:
        return lambda rank: rank
    ranks = axis_named(axis).ranks
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    size = len(ranks)
    regular = all(b - a == step for a, b in itertools.pairwise(ranks))
    if step < 1 or not regular or [rank // step % size for rank in ranks] != [*range(size)]:
        return None
    if at:
        return lambda rank: rank + (int(at) - rank // step % size) * step
    return lambda rank: rank // step % size
