"""The thread that makes no store call: it ends a process that nothing else can end."""

from __future__ import annotations

import os
import sys
import threading
import traceback

from lockstep.fleet.client import Client
from lockstep.fleet.faults import Fault
from lockstep.fleet.say import say, store_text
from lockstep.fleet.state import State

EXIT_STUCK = 75  # EX_TEMPFAIL: a restart may help


class Deadman:
    """Ends this process after a fault that it does not heed, or when the store stands still.

    A stopped store host blocks every call to it, a wait with a timeout too, so the watcher alone
    cannot be the one that ends a process. Aborting a gloo call does not free it either; only the
    end of the process does.

    Args:
        state: this rank.
        main: the main thread's connection.
    """

    def __init__(self, state: State, main: Client) -> None:
        self._state, self._client = state, main
        self._main = threading.main_thread().ident
        self.thread = threading.Thread(target=self._run, name="lockstep-deadman", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        state = self._state
        tick = min(1.0, state.timing.store / 4)
        seen, quiet, next_line = -1, 0.0, state.timing.store
        while not state.faulted.wait(tick):
            if state.stop.is_set():
                return
            quiet, seen = (quiet + tick if state.trips == seen else 0.0), state.trips
            if quiet < state.timing.store:
                next_line = state.timing.store
                continue
            text = f"{store_text(state.store_at)} has not answered for {quiet:.0f} s"
            if state.waiting or self._client.inside:
                self._end(f"{text}; this rank {state.waiting or 'waits for its answer'}")
            if quiet >= next_line:
                next_line = quiet + 60
                state.say(text)
        self._count_down(state.fault)

    def _count_down(self, fault: Fault | None) -> None:
        state, timing = self._state, self._state.timing
        grace = timing.grace
        if fault is not None and fault.kind == "silent" and state.building:
            grace += timing.finish  # the artifact makes the restart a hit
        culprit = None if fault is None else fault.rank
        who = "a fault" if culprit is None else f"the fault of rank {culprit}"
        if not state.left.wait(grace) and state.doing:
            self._end(f"still {state.doing[-1]} {grace:g} s after {who}{self._place()}")
        if not state.stop.wait(timing.hard):
            self._end(f"still running {timing.hard:g} s after {who}{self._place()}")

    def _place(self) -> str:
        """Return where the main thread is, as the last frame outside of torch."""
        frame = sys._current_frames().get(self._main or 0)
        rows = traceback.extract_stack(frame) if frame is not None else []
        user = [row for row in rows if f"{os.sep}site-packages{os.sep}" not in row.filename]
        return f", at {user[-1].filename}:{user[-1].lineno}" if user else ""

    def _end(self, why: str) -> None:
        text = f"{why}; ending this process (exit {EXIT_STUCK})"
        self._state.journal.event("end", why=why)
        flush = threading.Thread(target=_flush, args=(self._state.rank, text), daemon=True)
        flush.start()
        flush.join(1)  # a full pipe must not keep us
        os._exit(EXIT_STUCK)


def _flush(rank: int, text: str) -> None:
    say(rank, text)
    sys.stdout.flush()
