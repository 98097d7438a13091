"""All ranks post, the last one to come judges, all read one verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lockstep.fleet.client import Client
from lockstep.fleet.faults import Fault
from lockstep.fleet.say import ranks_text, waits
from lockstep.fleet.state import State
from lockstep.fleet.waiting import Waits
from lockstep.fleet.watcher import ended

LOOK = 64  # up to so many ranks, who is missing is looked up at each beat, else where it is told


class Agreement:
    """One round in which every rank posts a value and reads the verdict on all of them.

    Judging is a pure function of what was posted, so it may happen twice and gives the same bytes;
    whoever sees that all have come does it, since the last to come may have died.

    Args:
        client: the main thread's connection.
        waits: how to wait.
        state: this rank.
        line_of: finds the user's line that is about a path in what is posted; None: no line is.
    """

    def __init__(
        self,
        client: Client,
        waits: Waits,
        state: State,
        line_of: Callable[[Sequence[Any]], str | None] | None = None,
    ) -> None:
        self._client, self._waits, self._state = client, waits, state
        self._line_of = line_of

    def agree(
        self,
        topic: str,
        value: dict[str, Any],
        judge: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
        about: str,
    ) -> dict[str, Any]:
        """Post a value and return the verdict.

        Args:
            topic: keys' common start; equal on all ranks, used once.
            value: what this rank posts.
            judge: makes the verdict of all values, by rank; a key "fault" in it is raised.
            about: what is agreed on, for the user: "waits 3 s for rank 1 to <about>".

        Raises:
            FleetError: the ranks do not agree, or one of them failed, ended or never came.
        """
        client, world = self._client, self._state.world
        client.put(f"{topic}/{self._state.rank}", value)
        if client.add(f"{topic}/n", 1) == world:
            self._judge(topic, judge)
        missing: list[int] = []

        def what(seconds: float) -> str:
            missing[:] = [r for r in range(world) if not client.has(f"{topic}/{r}")]
            who = ranks_text(missing) if missing else "the verdict on all ranks"
            return waits(seconds, f"{who} to {about}")

        def on_slice() -> bool:
            if client.add(f"{topic}/n") == world:
                self._judge(topic, judge)
            if world <= LOOK:
                what(0)
            gone = [r for r in ended(client, missing) if not client.has(f"{topic}/{r}")]
            if gone:
                raise self._waits.post(_left(gone, about)).error()
            return False

        limit = self._state.timing.start
        verdict = self._waits.wait_for(f"{topic}/verdict", what, limit, on_slice)
        if "fault" in verdict:
            fault = Fault.read(verdict["fault"])
            if fault.path and self._line_of is not None:
                fault = replace(fault, where=self._line_of(fault.path))
            raise self._waits.post(fault).error()
        return verdict

    def _judge(self, topic: str, judge: Callable[[Sequence[dict[str, Any]]], Any]) -> None:
        keys = [f"{topic}/{rank}" for rank in range(self._state.world)]
        self._client.create(f"{topic}/verdict", judge(self._client.get_many(keys)))


def _left(gone: list[int], about: str) -> Fault:
    return Fault(
        kind="ended",
        rank=gone[0] if len(gone) == 1 else None,
        what=f"{ranks_text(gone)} ended while the others wait for it to {about}",
        why="every rank must take part",
        fix="let every rank make the same number of calls: pad the data or drop the rest",
        gone=tuple(gone),
    )
