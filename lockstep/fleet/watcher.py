"""The watcher thread: heartbeats, the fault key, the next rank, the first calls."""

from __future__ import annotations

import threading
import time

from lockstep.fleet.calls import compare_call, lone_vote
from lockstep.fleet.client import Client, StoreGone
from lockstep.fleet.faults import Fault
from lockstep.fleet.say import ranks_text, store_text
from lockstep.fleet.state import State

BYE = 10**12  # added to a rank's counter when it leaves in peace
RING = 256  # how many ranks one rank asks after when it looks for all that are silent


class Watcher:
    """Looks at the store once a beat; on a fault tells the user and wakes the main thread.

    Args:
        client: a connection of its own; a waiting main thread would block it.
        state: shared with the main thread and the deadman.
    """

    def __init__(self, client: Client, state: State) -> None:
        self._client, self._state = client, state
        self._next, self._seen, self._still = (state.rank + 1) % state.world, 0, 0
        self.thread = threading.Thread(target=self._run, name="lockstep-watch", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self._state.stop.wait(self._state.timing.beat):
                if self._round_or_fault():
                    return
        except StoreGone as error:
            self._store_gone(error)

    def _round_or_fault(self) -> bool:
        try:
            return self._round()
        except StoreGone:
            raise
        except Exception as error:  # a watcher that dies in silence is a hang to come
            fault = Fault.of(error, self._state.rank, "watching the other ranks")
            self._tell(self._post(fault) or fault)
            return True

    def _round(self) -> bool:
        state, client = self._state, self._client
        client.add(f"alive/{state.rank}", 1)
        self._look_at_next()
        while state.posts:
            self._post(compare_call(client, state, *state.posts[0]))
            state.posts.popleft()
        self._post(lone_vote(client, state))
        record = client.get("fault")
        state.trips += 1
        if record is None:
            return False
        self._tell(Fault.read(record))
        return True

    def _post(self, fault: Fault | None) -> Fault | None:
        """Post a fault unless there is one; return the one that counts."""
        if fault is None:
            return None
        self._state.journal.event("fault", culprit=fault.rank, what=fault.what, kind=fault.kind)
        return Fault.read(self._client.create("fault", fault.record()))

    def _tell(self, fault: Fault) -> None:
        state = self._state
        state.learn(fault)  # first: a full pipe may hold what follows
        if fault.kind != "error" or fault.rank != state.rank:  # Python tells of our own exception
            state.say(fault.report())
        state.journal.event("fault_seen", culprit=fault.rank, what=fault.what, kind=fault.kind)
        self._client.add("fault/seen", 1)

    def _look_at_next(self) -> None:
        """Miss the next rank that has not left in peace: its counter stands still in our polls."""
        state = self._state
        if self._next == state.rank:
            return
        count = self._client.add(f"alive/{self._next}")
        if count >= BYE:
            self._next, self._seen, self._still = (self._next + 1) % state.world, 0, 0
            return
        self._still = self._still + 1 if count == self._seen and count > 0 else 0
        self._seen = count
        if self._still >= state.timing.polls(state.timing.dead):
            gone = [self._next, *(r for r in silent(self._client, state, 3) if r != self._next)]
            self._post(silence(gone, self._still * state.timing.beat, state.rank))

    def _store_gone(self, error: StoreGone) -> None:
        """Judge a lost store: an end where someone waits on it, else only where nothing moves on.

        A clean end often closes the store first, so that alone is no fault.
        """
        state, timing = self._state, self._state.timing
        state.journal.event("store_gone", error=str(error))
        said, still, calls = False, 0.0, state.calls
        while not state.stop.wait(timing.beat):
            stands = bool(state.doing) and state.calls == calls
            still, calls = (still + timing.beat if stands else 0.0), state.calls
            if state.waiting or still >= timing.dead:
                fault = store_fault(error)
                state.learn(fault)
                return state.say(fault.report())  # a main thread that is busy never tells it
            if stands and not said:
                said = True
                text = f"{store_text(error.at)} is gone; nobody watches over this job any more"
                state.say(text)


def silent(client: Client, state: State, beats: int) -> list[int]:
    """Return which ranks' counters stand still for some beats, of the next few in the ring.

    When an agent ends its node, the first rank that is missed is rarely the first that died.
    """
    ranks = [(state.rank + i) % state.world for i in range(1, min(state.world, RING + 1))]
    before = {rank: client.add(f"alive/{rank}") for rank in ranks}
    time.sleep(beats * state.timing.beat)
    return [rank for rank in ranks if 0 < before[rank] < BYE and _still(client, rank, before[rank])]


def ended(client: Client, ranks: list[int]) -> list[int]:
    """Return which of some ranks have left in peace."""
    return [rank for rank in ranks if client.add(f"alive/{rank}") >= BYE]


def silence(gone: list[int], seconds: float, seen_by: int, also: str | None = None) -> Fault:
    """Return the fault of ranks that show no sign of life; `also` is what else was seen."""
    return Fault(
        kind="silent",
        rank=gone[0] if len(gone) == 1 else None,
        what=f"{ranks_text(gone)}: no sign of life for {seconds:g} s, seen by rank {seen_by}",
        got=also,
        why="killed, stopped, or its machine is gone",
        fix="see that rank's own last lines, and its node's torchrun for the exit code",
        gone=tuple(gone),
    )


def store_fault(error: StoreGone) -> Fault:
    """Return the fault of a rendezvous store that is gone."""
    return Fault(
        kind="store",
        rank=None,
        what=f"{store_text(error.at)} is gone: node 0's torchrun agent, or rank 0, has ended",
        got=str(error).partition("\n")[0],
        fix="see the last lines of node 0",
    )


def _still(client: Client, rank: int, before: int) -> bool:
    return client.add(f"alive/{rank}") == before
