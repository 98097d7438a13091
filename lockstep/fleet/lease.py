"""Who may build. The lease is for progress alone: one compare_set on `done` decides what counts."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.fleet.client import Client
from lockstep.fleet.state import State

NOBODY = -1


@dataclass(frozen=True)
class Held:
    """A lease as it stands: the how-many-eth attempt it is, and who holds it."""

    attempt: int
    holder: int

    def record(self) -> list[int]:
        """Return what is in the store."""
        return [self.attempt, self.holder]


class Lease:
    """The right to try building, passed on when its holder is silent or gives it back.

    Silence is a holder's heartbeat that does not move in `lease` seconds of this rank's polls. A
    holder that was only stopped and comes back finds in `done` what counts.

    Args:
        client: the main thread's connection.
        state: this rank.
        topic: keys' common start.
        candidates: the ranks that may build, in their order.
    """

    def __init__(self, client: Client, state: State, topic: str, candidates: list[int]) -> None:
        self._client, self._state, self._key = client, state, f"{topic}/lease"
        self.candidates = candidates
        self._seen: tuple[Held, int] | None = None
        self._still = 0
        self._tried = False
        self.silent: int | None = None  # from whom this rank has taken the lease

    def open(self) -> Held:
        """Give the lease to the first candidate, unless it has been given; return how it stands."""
        return Held(*self._client.create(self._key, [1, self.candidates[0]]))

    def look(self) -> Held:
        """Return how the lease stands."""
        return Held(*self._client.get(self._key))

    def release(self, held: Held) -> bool:
        """Give the lease back; return whether another rank may still try."""
        self._tried = True
        self._client.swap(self._key, held.record(), [held.attempt, NOBODY])
        return held.attempt < len(self.candidates)

    def take_over(self) -> Held | None:
        """Take the lease from a silent holder or from nobody; None where there is no reason to.

        Call it once a beat: each call is one poll of the holder's heartbeat.
        """
        if self._tried or self._state.rank not in self.candidates:
            return None
        held = self.look()
        pulse = self._client.add(f"alive/{held.holder}") if held.holder != NOBODY else 0
        self._still = self._still + 1 if self._seen == (held, pulse) else 0
        self._seen = (held, pulse)
        timing = self._state.timing
        if held.holder != NOBODY and self._still < timing.polls(timing.lease):
            return None
        mine = Held(held.attempt + 1, self._state.rank)
        if not self._client.swap(self._key, held.record(), mine.record()):
            return None
        self.silent = held.holder if held.holder != NOBODY else None
        return mine
