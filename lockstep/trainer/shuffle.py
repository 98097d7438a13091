"""A shuffled order that needs no memory: any place of it can be asked for, at once."""

from __future__ import annotations

import numpy as np

_ROUNDS = 4


def shuffled(places: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return which items stand at these places of a permutation of `range(count)`.

    A Feistel network permutes the next power of four; what lies beyond `count` goes through it
    again, which leaves a permutation.

    Args:
        places: i64, each below `count`.
        seed: another one is another order.

    Example:
        >>> order = shuffled(np.arange(10), 10, seed=1)
        >>> sorted(order.tolist()) == list(range(10)), order.tolist() == list(range(10))
        (True, False)
    """
    half = np.uint64(max(((count - 1).bit_length() + 1) // 2, 1))
    mask = np.uint64((1 << int(half)) - 1)
    found = places.astype(np.uint64)
    outside = np.ones(found.shape, dtype=bool)
    while outside.any():
        found[outside] = _permuted(found[outside], half, mask, seed)
        outside = found >= count
    return found.astype(np.int64)


def _permuted(values: np.ndarray, half: np.uint64, mask: np.uint64, seed: int) -> np.ndarray:
    left, right = values >> half, values & mask
    for turn in range(_ROUNDS):
        key = np.uint64((seed * _ROUNDS + turn) % (1 << 63))
        left, right = right, left ^ (_mixed(right + (key << np.uint64(32))) & mask)
    return (left << half) | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """The mixing function of splitmix64, by the wrapping arithmetic of unsigned integers."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
