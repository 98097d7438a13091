"""Changed bytes: flips, cuts, splices, moved blocks. No digest is computed again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from lockstep.build.format import HEADER
from tests.corruption.files import Real
from tests.corruption.judge import Mutation

BLOCK = 64
_EDGES = (0, 1, 7, 8, 11, 12, 16, 47, 48, 80, 143, 144, 145, 191, 192)


def torn(files: Sequence[Real], each: int, draw: random.Random) -> Iterator[Mutation]:
    """Yield mutations whose digests are those of other bytes.

    Args:
        each: how many of each kind, roughly.
        draw: all chance.
    """
    valid = {real.data for real in files}
    kinds = (_flip, _flips, _cut, _extended, _spliced, _blocks_moved, _blocks_swapped, _header)
    for kind in kinds:
        made = 0
        while made < each:
            real = draw.choice(files)
            name, data = kind(real, files, draw)
            if data not in valid:
                made += 1
                yield Mutation(name, data, real.wanted, False, real.signed)


def _flip(real: Real, _: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    """One bit, as often in the header and the manifest as in all the rest."""
    length = int.from_bytes(real.data[12:16], "little")
    low, high = draw.choice(
        [(0, 48), (48, HEADER), (HEADER, HEADER + length), (HEADER + length, len(real.data))]
    )
    data = bytearray(real.data)
    data[draw.randrange(low, high)] ^= 1 << draw.randrange(8)
    return "a flipped bit", bytes(data)


def _flips(real: Real, _: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    data = bytearray(real.data)
    for _ in range(draw.randint(2, 40)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return "other bytes", bytes(data)


def _cut(real: Real, _: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    edges = [*_EDGES, len(real.data) - 1, draw.randrange(len(real.data)) // BLOCK * BLOCK]
    at = draw.choice([draw.choice(edges), draw.randrange(len(real.data))])
    return "a cut file", real.data[:at]


def _extended(real: Real, _: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    tail = draw.choice([b"\0", bytes(BLOCK), draw.randbytes(draw.randint(1, 500)), real.data])
    return "bytes behind the end", real.data + tail


def _spliced(real: Real, files: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    """The head of one file and the tail of another, at one place or at two."""
    other = draw.choice([one for one in files if one.signed == real.signed])
    at = draw.choice([draw.choice(_EDGES), draw.randrange(len(real.data))])
    back = draw.choice([at, draw.randrange(len(other.data))])
    return "a splice of two files", real.data[:at] + other.data[back:]


def _blocks_moved(real: Real, _: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    data, size = bytearray(real.data), draw.choice([BLOCK, 4 * BLOCK, 16 * BLOCK])
    one, two = (draw.randrange(len(data) // BLOCK) * BLOCK for _ in range(2))
    first, second = data[one : one + size], data[two : two + size]
    data[one : one + len(second)], data[two : two + len(first)] = second, first
    return "blocks swapped in a file", bytes(data)


def _blocks_swapped(real: Real, files: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    other = draw.choice([one for one in files if one.signed == real.signed])
    size = draw.choice([BLOCK, 16 * BLOCK, len(real.data)])
    at = draw.randrange(len(real.data) // BLOCK) * BLOCK
    data = bytearray(real.data)
    data[at : at + size] = other.data[at : at + size]
    return "blocks of another signed file" if real.signed else "blocks of another file", bytes(data)


def _header(real: Real, _: Sequence[Real], draw: random.Random) -> tuple[str, bytes]:
    """Another magic, version or length of the manifest."""
    low, high = draw.choice([(0, 8), (8, 12), (12, 16)])
    extremes = [b"\xff" * (high - low), bytes(high - low), draw.randbytes(high - low)]
    return "another header", real.data[:low] + draw.choice(extremes) + real.data[high:]
