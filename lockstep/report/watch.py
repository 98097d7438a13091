"""A run that is going on, as a table in the terminal: ranks, phases, what is waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.report.page.phases import program_of
from lockstep.report.page.ranks import ranges
from lockstep.report.page.render import seconds_text

if TYPE_CHECKING:
    from rich.table import Table

Event = dict[str, Any]


@dataclass(frozen=True)
class Status:
    """What one rank does now.

    Args:
        phase: "starts", "waits", a stage of the build, "loads", "runs", "failed" or "left".
        since: wall-clock seconds.
        what: the program, what is waited for, the last numbers it recorded, or the failure.
    """

    phase: str
    since: float
    what: str = ""

    def after(self, event: Event) -> Status:
        """What the rank does once it has written an event.

        Example:
            >>> Status("starts", 0.0).after({"event": "waits", "time": 2.0, "what": "waits for x"})
            Status(phase='waits', since=2.0, what='for x')
        """
        name, at = event["event"], event["time"]
        if name == "waits":
            return Status("waits", at, event["what"].removeprefix("waits "))
        if name == "stage":
            return Status(event["stage"], at, program_of(event))
        if name == "ready":
            return Status("loads", at, f"{program_of(event)}, {event['role']}")
        if name == "record":
            kept = {k: v for k, v in event.items() if isinstance(v, float) and k != "time"}
            told = ", ".join(f"{k} {v:.4g}" for k, v in kept.items())
            return replace(self._runs(at), what=f"step {event['step']}: {told}")
        if name == "ran":
            told = f"{program_of(event)}, call {event['call']} took {event['seconds']:.3g} s"
            return replace(self._runs(at), what=told)
        if name in ("fault", "fault_seen"):
            return Status("failed", at, event["what"])
        if name == "end":
            return Status("failed", at, event["why"])
        if name == "left":
            return self if self.phase == "failed" else Status("left", at, self.what)
        return self

    def _runs(self, at: float) -> Status:
        return self if self.phase == "runs" else Status("runs", at)


class Follower:
    """Reads what has been added to a run's journals since it looked last.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.ranks: dict[int, Status] = {}
        self.world = 0

    def look(self) -> None:
        """Take in every whole line that is new."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))

    def _take(self, event: Event) -> None:
        before = self.ranks.get(event["rank"], Status("starts", event["time"]))
        self.ranks[event["rank"]] = before.after(event)
        self.world = max(self.world, event.get("world", 1))

    @property
    def over(self) -> bool:
        """Whether every rank has left, or failed."""
        ended = [status.phase in ("left", "failed") for status in self.ranks.values()]
        return len(ended) == self.world > 0 and all(ended)


def table(follower: Follower, now: float, title: str) -> Table:
    """A row for all ranks that do the same."""
    from rich.table import Table

    missing = follower.world - len(follower.ranks)
    told = f"; {missing} have written nothing here" if missing else ""
    made = Table("ranks", "phase", "for", "what", title=f"{title}: {follower.world} ranks{told}")
    for ranks, status in alike(follower.ranks.items()):
        since = seconds_text(max(now - status.since, 0)) if status.phase != "left" else ""
        made.add_row(ranges(ranks), status.phase, since, status.what)
    return made


def alike(ranks: Iterable[tuple[int, Status]]) -> list[tuple[list[int], Status]]:
    """Ranks in the same phase, of the same program; of those that run, the first one's numbers."""
    found: dict[tuple[str, str], tuple[list[int], Status]] = {}
    for rank, status in sorted(ranks):
        key = status.phase, "" if status.phase in ("runs", "left") else status.what
        found.setdefault(key, ([], status))[0].append(rank)
    return list(found.values())
