"""All ranks post, the last one to come judges, all read one verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lockstep.fleet.client import SLICE, Client
from lockstep.fleet.faults import Fault
from lockstep.fleet.say import ranks_text, waits
from lockstep.fleet.scope import Scope
from lockstep.fleet.state import State
from lockstep.fleet.waiting import Waits
from lockstep.fleet.watcher import ended

Judge = Callable[[Sequence[dict[str, Any]], Sequence[int]], dict[str, Any]]
LOOK = 64  # up to so many ranks, who is missing is looked up at each beat, else where it is told


class Agreement:
    """One round in which every rank posts a value and reads the verdict on all of them.

    Judging is a pure function of what was posted, so it may happen twice and gives the same bytes;
    whoever sees that all have come does it, since the last to come may have died.

    Args:
        client: the main thread's connection.
        waits: how to wait.
        state: this rank.
        scope: the ranks that take part.
        line_of: finds the user's line that is about a path in what is posted; None: no line is.
    """

    def __init__(
        self,
        client: Client,
        waits: Waits,
        state: State,
        scope: Scope,
        line_of: Callable[[Sequence[Any]], str | None] | None = None,
    ) -> None:
        self._client, self._waits, self._state, self._scope = client, waits, state, scope
        self._line_of = line_of

    def agree(
        self,
        topic: str,
        value: dict[str, Any],
        judge: Judge,
        about: str,
        limit: float | None = None,
    ) -> dict[str, Any]:
        """Post a value and return the verdict.

        Args:
            topic: keys' common start; equal on all ranks, used once.
            value: what this rank posts.
            judge: makes the verdict of all values and of who posted each; a key "fault" in it is
                raised.
            about: what is agreed on, for the user: "waits 3 s for rank 1 to <about>".
            limit: seconds to wait for the others; None: `Timing.start`.

        Raises:
            FleetError: the ranks do not agree, or one of them failed, ended or never came.
        """
        client, ranks = self._client, self._scope.ranks
        client.put(f"{topic}/{self._state.rank}", value)
        if client.add(f"{topic}/n", 1) == len(ranks):
            self._judge(topic, judge)
        missing: list[int] = []

        def what(seconds: float) -> str:
            if seconds:  # most waits are over before they are told
                missing[:] = self._missing(topic)
            who = ranks_text(missing) if missing else "the verdict on all ranks"
            return waits(seconds, f"{who} to {about}")

        def on_slice() -> bool:
            if client.add(f"{topic}/n") == len(ranks):
                self._judge(topic, judge)
            if len(ranks) <= LOOK:
                missing[:] = self._missing(topic)
            gone = [r for r in ended(client, missing) if not client.has(f"{topic}/{r}")]
            if gone:
                raise self._waits.post(_left(gone, about)).error()
            return False

        limit = limit or self._state.timing.start
        verdict = self._waits.wait_for(f"{topic}/verdict", what, limit, on_slice)
        if "fault" in verdict:
            fault = Fault.read(verdict["fault"])
            if fault.path and self._line_of is not None:
                fault = replace(fault, where=self._line_of(fault.path))
            raise self._waits.post(fault).error()
        return verdict

    def _missing(self, topic: str) -> list[int]:
        """Who has not come; of many ranks only the first looks, since a look is at all others."""
        ranks = self._scope.ranks
        if len(ranks) > LOOK and self._state.rank != ranks[0]:
            return []
        slices = [ranks[at : at + SLICE] for at in range(0, len(ranks), SLICE)]
        late = [part for part in slices if not self._client.has(*(f"{topic}/{r}" for r in part))]
        return [r for part in late for r in part if not self._client.has(f"{topic}/{r}")]

    def _judge(self, topic: str, judge: Judge) -> None:
        ranks = self._scope.ranks
        posted = self._client.get_many([f"{topic}/{rank}" for rank in ranks])
        self._client.create(f"{topic}/verdict", judge(posted, ranks))


def _left(gone: list[int], about: str) -> Fault:
    return Fault(
        kind="ended",
        rank=gone[0] if len(gone) == 1 else None,
        what=f"{ranks_text(gone)} ended while the others wait for it to {about}",
        why="every rank must take part",
        fix="let every rank make the same number of calls: pad the data or drop the rest",
        gone=tuple(gone),
    )
