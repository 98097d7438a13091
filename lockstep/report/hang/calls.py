"""What a rank has called, as a list of collectives, whoever has recorded it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """One collective of one rank.

    Args:
        op: "all_reduce" and kin.
        axis: the mesh axis, or the group's name.
        what: type and shape of what goes in, as "f32[8, 16]".
        line: the user's, as "train.py:31"; empty where it is not known.
        done: whether it was seen to end.
    """

    op: str
    axis: str
    what: str
    line: str
    done: bool

    @property
    def key(self) -> tuple[str, ...]:
        """What has to be the same on every rank."""
        return self.op, self.axis, self.what, self.line

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"{self.op} over {self.axis} of {self.what}{at}"


@dataclass(frozen=True)
class RankCalls:
    """What one rank has called, in order.

    Args:
        calls: those that are known; before them there were `before` more.
        each: how many there are in one call of the program; 0: not known, and all are counted on.
        where: which call of which program it is in, as "train_step v0, call 7"; may be empty.
        ended: how its process ended, where that is known.
    """

    rank: int
    calls: list[Call]
    before: int = 0
    each: int = 0
    where: str = ""
    ended: str = ""
    groups: dict[str, list[int]] = field(default_factory=dict)
