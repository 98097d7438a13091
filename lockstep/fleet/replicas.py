"""Which values are not the same on ranks that should hold copies: digests compared in a vote.

One digest of everything goes with the vote. Only where that differs do the ranks post one for each
name, to find out which.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

Odd = dict[str, dict[str, list[int]]]  # axis -> name -> the ranks that differ from the most


class Compared(Protocol):
    """What a rank compares with others: see `run.replicas`."""

    def summary(self) -> dict[str, Any]:
        """Axis -> {"beside": where the rank is on the other axes, "digest": of everything}."""

    def digests(self, axes: Sequence[str]) -> dict[str, Any]:
        """The same, with "names": a digest by name, in place of one of everything."""

    def heard(self, odd: Odd) -> None:
        """Take in what was found; not called where nothing differs."""


def axes_apart(posted: Sequence[dict[str, Any]]) -> list[str]:
    """The axes along which some ranks hold other values.

    Args:
        posted: by rank a vote, with "replicas" as `Compared.summary` gives it.
    """
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for vote in posted:
        for axis, row in vote["replicas"].items():
            seen[axis, row["beside"]].add(row["digest"])
    return sorted({axis for (axis, _), digests in seen.items() if len(digests) > 1})


def odd_replicas(
    posted: Sequence[dict[str, Any]], ranks: Sequence[int] | None = None
) -> dict[str, Odd]:
    """Say, by axis and name, which ranks differ from most of those beside them.

    Args:
        posted: by rank, as `Compared.digests` gives it.
        ranks: who posted each; None: ranks 0, 1, and so on.
    """
    ranks = range(len(posted)) if ranks is None else ranks
    by_rank = dict(zip(ranks, posted, strict=True))
    odd: Odd = {}
    for axis in sorted({axis for row in posted for axis in row}):
        groups: dict[str, list[int]] = defaultdict(list)
        for rank, row in by_rank.items():
            if axis in row:
                groups[row[axis]["beside"]].append(rank)
        for those in groups.values():
            for name in by_rank[those[0]][axis]["names"]:
                found = _odd(those, [by_rank[rank][axis]["names"].get(name) for rank in those])
                if found:
                    odd.setdefault(axis, {}).setdefault(name, []).extend(found)
    return {"odd": odd}


def _odd(ranks: list[int], digests: list[str | None]) -> list[int]:
    """The ranks whose digest is not the most frequent one; of equals the lowest rank's counts."""
    usual = max(dict.fromkeys(digests), key=digests.count)
    return [rank for rank, digest in zip(ranks, digests, strict=True) if digest != usual]
