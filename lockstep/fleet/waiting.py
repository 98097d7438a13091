"""How the main thread waits: for one key, told what for, ended by a fault or a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lockstep.fleet.client import Client, StoreGone
from lockstep.fleet.faults import Fault
from lockstep.fleet.state import State
from lockstep.fleet.watcher import store_fault


class Waits:
    """Waits on the store without blocking the main thread's own connection.

    A helper thread blocks in the store and the main thread on an event, so that a key, a fault and
    a lost store each wake it at once.

    Args:
        main: the main thread's connection, which reads the key.
        blocked: a connection that nobody else uses.
        state: shared with the watcher.
    """

    def __init__(self, main: Client, blocked: Client, state: State) -> None:
        self._main, self._blocked, self._state = main, blocked, state
        self._threads: dict[str, threading.Thread] = {}

    def wait_for(
        self,
        key: str,
        what: Callable[[float], str],
        limit: float,
        on_slice: Callable[[], bool] = lambda: False,
        at_once: bool = False,
    ) -> Any:
        """Return the value of a key as soon as it is there; None if `on_slice` ended the wait.

        Args:
            key: what to wait for.
            what: makes the line for the user of the seconds waited so far.
            limit: give up after so many seconds, counted in polls.
            on_slice: asked once a beat; true ends the wait.
            at_once: whether to print the first line before the first poll.

        Raises:
            FleetError: a rank failed, the store is gone, or nobody came within the limit.
        """
        state, beat = self._state, self._state.timing.beat
        state.raise_fault()
        value = self._main.get(key)
        if value is not None:
            return value
        gone = self._block(key)
        polls, next_line = 0, 0 if at_once else 1
        before, state.waiting = state.waiting, what(0)
        state.journal.event("waits", what=state.waiting)
        try:
            while True:
                if polls >= next_line and state.speaks:
                    state.say(f"rank {state.rank} {what(polls * beat)}")
                    next_line = polls + state.timing.polls(state.timing.say)
                woken = state.wake.wait(beat)
                state.wake.clear()
                state.raise_fault()
                if gone:
                    raise store_fault(gone[0]).error()
                value = self._main.get(key)
                if value is not None:
                    return value
                if woken:
                    continue
                if on_slice():
                    return None
                polls += 1
                if polls * beat > limit:
                    raise self.post(_gave_up(what(polls * beat), state.rank)).error()
        except StoreGone as error:
            raise store_fault(error).error() from None
        finally:
            state.waiting = before

    def post(self, fault: Fault) -> Fault:
        """Post a fault unless there is one; return the one that counts."""
        first = Fault.read(self._main.create("fault", fault.record()))
        told = {"what": first.what, "kind": first.kind, "text": str(first.error())}
        self._state.journal.event("fault", culprit=first.rank, **told)
        return first

    def end(self, limit: float) -> None:
        """Wait for the helper threads whose key is there: each is about to leave the store.

        One that comes back to Python while the interpreter ends is unwound through C++, which
        aborts the process ("terminate called without an active exception"; Python before 3.14).
        """
        for key, thread in self._threads.items():
            if thread.is_alive() and self._main.has(key):
                thread.join(limit)

    def _block(self, key: str) -> list[StoreGone]:
        gone: list[StoreGone] = []

        def run() -> None:
            try:
                self._blocked.wait_then(key, self._state.wake.set)
            except StoreGone as error:
                gone.append(error)
                self._state.wake.set()

        thread = threading.Thread(target=run, name=f"lockstep-wait {key}", daemon=True)
        self._threads = {k: t for k, t in self._threads.items() if t.is_alive()} | {key: thread}
        thread.start()
        return gone


def _gave_up(what: str, rank: int) -> Fault:
    return Fault(
        kind="timeout",
        rank=None,
        what=f"gave up: rank {rank} {what}",
        why="a rank that never comes has no heartbeat to miss",
        fix="see what those ranks do; LOCKSTEP_TIMING=start=..., build=... changes the limit",
    )
