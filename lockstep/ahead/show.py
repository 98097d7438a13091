"""A build as its user sees it: a line for each step while it is made, and what came of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lockstep.ahead.build import Ahead, Built, Job

STAGES = ("set-up", "capture", "check", "second coordinate", "lower", "pack")


class Shown:
    """Shows the stages of each step; on a terminal in place, else a line for each step.

    Args:
        stream: what it is shown on.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._live = self._console.is_terminal
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=self._console, disable=not self._live)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Shown:
        self._progress.start()
        self._tasks[""] = self._progress.add_task("set-up", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def hear(self, event: dict[str, Any]) -> None:
        """Take in what happened."""
        if event["event"] == "stage":
            self._stage(event["step"], _spent(event["seconds"]), event["stage"])
        elif event["event"] == "packed":
            self._stage(event["step"], _spent(event["seconds"]), "")
            if not self._live:
                self._console.print(f"{event['step']}: {_spent(event['seconds'])}", markup=False)

    def _stage(self, step: str, spent: str, now: str) -> None:
        if not self._live:
            return
        if step not in self._tasks:
            first = self._tasks.pop("", None)
            self._tasks[step] = first if first is not None else self._progress.add_task(step)
        text = f"{step}: {spent}" + (f", {now} ..." if now else "")
        self._progress.update(self._tasks[step], description=text, total=None if now else 1)
        if not now:
            self._progress.update(self._tasks[step], completed=1)


def _spent(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds[name]:.1f} s" for name in STAGES if name in seconds)


def lines(job: Job, ahead: Ahead) -> Iterator[str]:
    """The end of a build, for people: what was built, what was not, and what to look at."""
    yield from ahead.notes
    for built in ahead.built:
        yield _of(built)
    for name in ahead.not_reached if ahead.built else ():
        yield f"{name} was not reached, and is not built"
    if ahead.used:
        yield (
            f"{len(ahead.built)} artifact(s) for {job.world} rank(s) in "
            f"{ahead.used['seconds']:.1f} s, {ahead.used['peak_mb']:.0f} MB at most"
        )


def _of(built: Built) -> str:
    manifest = built.manifest
    digest = hashlib.sha256(built.data).hexdigest()[:12]
    like = manifest.get("compared")
    said = ""
    if like:
        ranks = (
            "every rank captures" if like["every rank"] else f"{len(like['ranks'])} ranks capture"
        )
        one, other = like["code of"]
        said = f"; {ranks} the same graph, ranks {one} and {other} generate the same code"
    size = len(built.data) / 1e6
    name = " ".join(filter(None, [built.step, manifest["fingerprint"].get("options role")]))
    return (
        f"{name} [{digest}]: {manifest['nodes']} nodes, {len(manifest['schedule'])} "
        f"collectives, {size:.1f} MB{said} -> {built.path}"
    )
