"""Which ranks of a world are traced: all of a small one; of a large one ends, a line, a sample."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence

ALL_UP_TO = 16  # ranks, each of which is then traced
CORNERS = 8  # at most; a mesh of many axes has more
ALONG = 8  # ranks of a line through the inside; of a longer axis the middle one
RANDOM = 2


def traced_ranks(sizes: Mapping[str, int], world: int, everything: bool = False) -> list[int]:
    """The ranks that are traced, the building one and the farthest from it first.

    Args:
        sizes: axis -> size, outermost first; the ranks lie in it row by row. Where these are not
            the whole world, the world is taken as one line.
        everything: all of them, however many.

    Returns:
        In a world of more than `ALL_UP_TO` ranks: the corners, one step along each axis (a formula
        is fitted to these), a line along the shortest axis through the inside, and a random sample
        that is the same for the same mesh.

    Example:
        >>> traced_ranks({"dp": 2, "tp": 2}, 4)
        [0, 3, 1, 2]
        >>> traced_ranks({"dp": 64}, 64)
        [0, 63, 1, 32, 39, 57]
    """
    first = [0, world - 1]
    if everything or world <= ALL_UP_TO:
        return list(dict.fromkeys([*first, *range(world)]))
    shape = [*sizes.values()] if math.prod(sizes.values()) == world else [world]
    corners = itertools.islice(itertools.product(*((0, size - 1) for size in shape)), CORNERS)
    steps = [
        [int(other == axis) for other in range(len(shape))]
        for axis, size in enumerate(shape)
        if size > 1
    ]
    inside = [size // 2 for size in shape]
    wide = [axis for axis, size in enumerate(shape) if size > 2] or [0]
    short = min(wide, key=lambda axis: shape[axis])
    size = shape[short]
    along = range(size) if size <= ALONG and len(shape) > 1 else [size // 2]
    line = [[*inside[:short], at, *inside[short + 1 :]] for at in along]
    seeded = random.Random(str(shape))
    sample = [seeded.randrange(world) for _ in range(RANDOM)]
    ranks = [_rank(place, shape) for place in [*corners, *steps, *line]]
    return list(dict.fromkeys([*first, *ranks, *sample]))


def _rank(place: Sequence[int], shape: Sequence[int]) -> int:
    rank = 0
    for at, size in zip(place, shape, strict=True):
        rank = rank * size + at
    return rank
