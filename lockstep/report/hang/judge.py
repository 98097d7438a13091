"""What keeps a job from going on, judged by what each of its ranks has called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.report.hang.calls import Call, RankCalls
from lockstep.report.page.ranks import ranges


@dataclass(frozen=True)
class Stand:
    """Where one rank stands.

    Args:
        number: which collective, from 1; 0: it has called none.
        of: how many there are, as far as that is known.
        call: the one it stands at; None where it has called none.
        waits: what it waits for, in words; empty where it waits for nothing.
    """

    rank: int
    number: int
    of: int | None
    call: Call | None
    where: str
    waits: str


@dataclass(frozen=True)
class Hang:
    """The judgement.

    Args:
        culprits: the ranks that keep the others from going on; none where nothing hangs.
        said: what each of them did, in a sentence: rank, call and user line.
        stands: of every rank.
    """

    culprits: list[int]
    said: list[str]
    stands: list[Stand] = field(default_factory=list)


def judge(ranks: Mapping[int, RankCalls], world: int | None = None) -> Hang:
    """Judge what the ranks have called.

    All ranks of a program make the same calls in the same order: where one differs from most of
    them, it is named; where none does, those that came least far are.

    Args:
        ranks: what is known of each.
        world: how many there are; None: those that are known, and those that their groups name.
    """
    named = {rank for own in ranks.values() for group in own.groups.values() for rank in group}
    everyone = sorted(named | set(ranks) | set(range(world or 0)))
    return _Judge(ranks, everyone).hang()


class _Judge:
    def __init__(self, ranks: Mapping[int, RankCalls], everyone: list[int]) -> None:
        self.ranks, self.everyone = ranks, everyone
        self.gone = [rank for rank in everyone if rank not in ranks]
        # A record is a ring: calls are compared from the first one that all of them reach back to.
        self.at = max((own.before for own in ranks.values()), default=0)
        self.each = max((own.each for own in ranks.values()), default=0)
        self.seen = {rank: own.calls[self.at - own.before :] for rank, own in ranks.items()}
        self.longest = max(self.seen.values(), key=len, default=[])

    def hang(self) -> Hang:
        odd = self.odd()
        culprits, said = ([r for r, _ in odd], [t for _, t in odd]) if odd else self.behind()
        stands = [self.stand(rank, culprits) for rank in self.everyone if rank in self.ranks]
        return Hang(culprits, said, stands)

    def number(self, place: int) -> int:
        """How the call at a place of the compared lists is numbered, from 1."""
        count = self.at + place
        return (count % self.each if self.each else count) + 1

    # -- calls that are not those of most

    def odd(self) -> list[tuple[int, str]]:
        """The ranks whose calls differ from most ranks', at the first place where any do."""
        for place in range(len(self.longest)):
            here = {rank: own[place] for rank, own in self.seen.items() if len(own) > place}
            counts = Counter(call.key for call in here.values())
            if len(counts) > 1:
                most = counts.most_common(1)[0][0]
                like = max((self.seen[r] for r, c in here.items() if c.key == most), key=len)
                wrong = [rank for rank, call in here.items() if call.key != most]
                return [(rank, self.told(rank, like, place)) for rank in wrong]
        return []

    def told(self, rank: int, like: list[Call], place: int) -> str:
        """How one rank's calls leave those of the others, which are like."""
        own, number = self.seen[rank], self.number(place)
        mine, theirs = [c.key for c in own[place:]], [c.key for c in like[place:]]
        if len(mine) > 1 and len(theirs) > 1 and mine[:2] == theirs[1::-1]:
            both = f"{number} and {number + 1}"
            return (
                f"rank {rank} swapped collectives {both}: first {own[place]}, then {own[place + 1]}"
            )
        if len(theirs) > 1 and theirs[1 : 1 + len(mine)] == mine[: len(theirs) - 1]:
            skipped = f"collective {number}, {like[place]}"
            return f"rank {rank} skipped {skipped}: it went on to {own[place]}"
        if len(mine) > 1 and mine[1 : 1 + len(theirs)] == theirs[: len(mine) - 1]:
            return f"rank {rank} alone made collective {number}, {own[place]}"
        return f"rank {rank} made {own[place]} as collective {number}, the others {like[place]}"

    # -- calls that are the same, and fewer

    def behind(self) -> tuple[list[int], list[str]]:
        """Ranks that came least far; those that left no record first."""
        stands = any(not call.done for own in self.seen.values() for call in own)
        if not stands and not self.gone:
            return [], []
        if self.gone:
            who = f"{'ranks' if len(self.gone) > 1 else 'rank'} {ranges(self.gone)}"
            how = "ended before all were through with" if stands else "the others came as far as"
            place = len(self.longest) - 1
            last = (
                f"collective {self.number(place)}, {self.longest[-1]}" if self.longest else "none"
            )
            return self.gone, [f"{who} left no record: {how} {last}"]
        least = min(map(len, self.seen.values()))
        late = [rank for rank, own in self.seen.items() if len(own) == least]
        if least == len(self.longest):  # all stand alike: who of them is not there any more?
            stuck = [rank for rank in late if self.ranks[rank].ended]
            return stuck, [self.left(rank) for rank in stuck]
        ahead = next(rank for rank, own in self.seen.items() if own is self.longest)
        missing = self.named(ahead, least, self.longest[least])
        return late, [f"{self.left(rank)}, and never made {missing}" for rank in late]

    def left(self, rank: int) -> str:
        """Where a rank stopped, in words."""
        calls, ended = self.seen[rank], self.ranks[rank].ended or "stands"
        if not calls:
            return f"rank {rank} {ended} before its first call"
        state = "after" if calls[-1].done else "in"
        return f"rank {rank} {ended} {state} {self.named(rank, len(calls) - 1, calls[-1])}"

    def named(self, rank: int, place: int, call: Call) -> str:
        """One of a rank's calls, in words."""
        of = f" of {self.ranks[rank].where}" if self.ranks[rank].where else ""
        return f"collective {self.number(place)}{of}, {call}"

    # -- every rank

    def stand(self, rank: int, culprits: list[int]) -> Stand:
        """Where one rank is, and what it waits for."""
        own, calls = self.ranks[rank], self.seen[rank]
        of = self.each or self.at + len(self.longest)
        if not calls:
            return Stand(rank, 0, of, None, own.where, "")
        place = next((i for i, call in enumerate(calls) if not call.done), len(calls) - 1)
        others, call = [r for r in culprits if r != rank], calls[place]
        waits = f"rank {ranges(others)} to join it" if others else f"the others of {call.axis}"
        return Stand(rank, self.number(place), of, call, own.where, "" if call.done else waits)
