"""Which ranks share one program: all of them, or those of one declared role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Scope:
    """Ranks that vote, build and confirm together.

    Args:
        name: "" for all ranks, else the role: "pp=1".
        ranks: their numbers in the world, ascending.

    Example:
        >>> stage = Scope("pp=1", (2, 3))
        >>> stage.key("vote/1"), stage.far_end(2), stage.far_end(3)
        ('vote/pp=1/1', 3, 2)
        >>> stage.leads(2, local_rank=2), stage.leads(3, local_rank=3)
        (True, False)
    """

    name: str
    ranks: Sequence[int]

    @classmethod
    def world(cls, size: int) -> Scope:
        """All ranks."""
        return cls("", range(size))

    def key(self, topic: str) -> str:
        """A topic's key, which no other scope uses.

        Example:
            >>> Scope.world(2).key("vote/1")
            'vote/1'
        """
        head, _, rest = topic.partition("/")
        return f"{head}/{self.name}/{rest}" if self.name else topic

    def leads(self, rank: int, local_rank: int) -> bool:
        """Whether a rank is the first of these on its node: it fetches for the others there."""
        return not any(other in self.ranks for other in range(rank - local_rank, rank))

    def far_end(self, rank: int) -> int:
        """The rank that a builder compares with: the last one, or of the last one the first."""
        return self.ranks[-1] if rank != self.ranks[-1] else self.ranks[0]

    def at_ends(self, rank: int) -> bool:
        """Whether a rank is one that others may compare with."""
        return rank in (self.ranks[0], self.ranks[-1])
