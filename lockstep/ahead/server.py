"""Makes the steps of one script for one world: plays its ranks, compares them, keeps the artifacts.

python -m lockstep.ahead.server FOLDER, where FOLDER holds job.json; what happens goes to stdout, a
JSON object a line. One thread and no tensor, so that ranks can be forked from it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.ahead.council import Council
from lockstep.ahead.line import Line
from lockstep.ahead.maker import BUILDS, SECONDS, TRACES, Task
from lockstep.ahead.places import ALL_UP_TO, traced_ranks
from lockstep.ahead.ranks import Played, Ranks, own_peak_kb
from lockstep.errors import CaptureError, LockstepError, UsageError

Tell = Callable[..., None]


class Stop(Exception):
    """The build ends here; why was told."""


class Server:
    """One build.

    Args:
        job: what `lockstep.ahead.build.Job` has, as JSON values.
        folder: for what the ranks leave.
        tell: gets the events.
    """

    def __init__(self, job: dict[str, Any], folder: Path, tell: Tell) -> None:
        self._job, self._folder, self._tell = job, folder, tell
        self._everything = job["all_coordinates"]
        self._members: list[int] = job["members"] or list(range(job["world"]))
        self._ends = list(dict.fromkeys([self._members[0], self._members[-1]]))
        self._ranks = Ranks(job["most"], self._play)
        self._council: dict[str, Council] = {}
        small = self._everything or len(self._members) <= ALL_UP_TO
        self._traced = self._chosen({}) if small else []
        self._formulas: dict[str, Any] = {}
        self._late: tuple[Played, dict[str, Any]] | None = None  # a rank that failed
        self._made: dict[int, list[str]] = {}  # by rank that has ended: the steps it came to

    def run(self) -> None:
        """Play all ranks until the artifacts are made."""
        begin = time.monotonic()
        self._ranks.todo.extend(self._task(number) for number in self._ends)
        self._ranks.todo.extend(self._task(number) for number in self._traced[2:])
        try:
            for rank, event in self._ranks.events():
                self._heard(rank, dict(event))
                if rank.task.role == BUILDS and event["event"] == "gone":
                    break
        except Stop:
            pass
        finally:
            self._ranks.end()
        self._tell(
            "used", seconds=time.monotonic() - begin, cpu_s=self._ranks.cpu_s,
            peak_mb=max(self._ranks.peak_kb, own_peak_kb()) / 1024, ranks=len(self._traced),
        )  # fmt: skip

    def _chosen(self, sizes: dict[str, int]) -> list[int]:
        """The ranks that are traced, of those that share the programs."""
        apart = {axis: size for axis, size in sizes.items() if axis not in self._job["roles"]}
        chosen = traced_ranks(apart, len(self._members), self._everything)
        return [self._members[at] for at in chosen]

    def _task(self, rank: int) -> Task:
        job, first = self._job, self._ends[0]
        role = BUILDS if rank == first else SECONDS if rank == self._ends[-1] else TRACES
        return Task(
            rank, job["world"], role, self._folder, tuple(job["steps"]), job["calls"], job["real"],
            dict(self._formulas), job["store"],
        )  # fmt: skip

    def _play(self, task: Task, line: Line) -> None:
        from lockstep.ahead.script import play

        play(Path(self._job["script"]), self._job["arguments"], task, line)

    # -- what they say

    def _heard(self, rank: Played, event: dict[str, Any]) -> None:
        name, step = event.pop("event"), event.get("step", "")
        if name in ("note", "stage"):
            self._tell(name, **event)
        elif name == "ended":
            self._ended(rank, event)
        elif name == "gone":
            self._gone(rank)
        elif name == "packed":
            self._tell("packed", **event)
            rank.answer()
        else:
            ends = rank.task.role == BUILDS or (rank.task.role == SECONDS and name != "lowered")
            rank.waits = (step, name) if ends else None
            if rank.task.role == BUILDS and name == "asked":
                self._refuse_other_mesh(step, event["sizes"])
            if name == "asked":
                self._leave_to_roles(event)
            council = self._council_of(step, event)
            self._fail_late()
            if name == "captured" and self._is_stale(rank, step):
                return
            key = {"asked": "asked", "captured": "views", "lowered": "code"}[name]
            value = {"asked": event, "captured": event.get("view"), "lowered": event.get("code")}
            getattr(council, key)[rank.task.rank] = value[name]
            try:
                self._advance(council, name)
            except LockstepError as error:
                self._refuse(str(error), machines=False)

    def _is_stale(self, rank: Played, step: str) -> bool:
        """Whether it traced its own numbers, in whose place there are formulas now."""
        then = rank.task.formulas.get(step, [])
        return rank.task.role == TRACES and then != self._formulas.get(step, [])

    def _council_of(self, step: str, event: dict[str, Any]) -> Council:
        if not self._traced and "sizes" in event:
            self._traced = self._chosen(event["sizes"])
            self._ranks.todo.extend(self._task(rank) for rank in self._traced[2:])
        if step not in self._council:
            every = len(self._traced) == len(self._members)
            self._council[step] = Council(step, self._traced, every)
            for ended, made in self._made.items():
                self._refuse_absent(ended, made)
        return self._council[step]

    def _leave_to_roles(self, event: dict[str, Any]) -> None:
        """End where a step has roles and all ranks were taken for one: each is built apart."""
        if event["roles"] and not self._job["roles"]:
            self._tell("roles", sizes=event["sizes"], roles=event["roles"])
            raise Stop

    def _refuse_other_mesh(self, step: str, sizes: dict[str, int]) -> None:
        other = {axis: n for axis, n in self._job["sizes"].items() if sizes.get(axis) != n}
        if other:
            error = UsageError(
                f"the mesh of {step} has other axes or sizes",
                got=", ".join(f"{axis}={n}" for axis, n in sizes.items()) or "no mesh",
                want=", ".join(f"{axis}={n}" for axis, n in other.items()),
                why="--mesh sets the sizes of a mesh that ls.mesh makes, and no other's",
            )
            self._refuse(str(error), machines=True)

    def _advance(self, council: Council, name: str) -> None:
        """Let those go on who wait for all to have said something, where all have."""
        if name == "asked" and not council.settled and not council.missing(council.asked):
            council.settled, found = True, council.formulas()
            if found:
                self._again(council, found)
            self._answer(council, name, formulas=found)
        elif name == "captured" and not council.missing(council.views):
            council.likeness = council.graphs()
            self._answer(council, name)
        elif name == "lowered":
            if all(rank in council.code for rank in self._ends):
                if len(self._ends) > 1:
                    council.likeness |= council.texts(self._ends)
                likeness = council.likeness if len(self._members) > 1 else None
                self._answer(council, name, likeness=likeness)

    def _again(self, council: Council, found: list[Any]) -> None:
        """Trace anew, with formulas, the ranks that traced their own numbers."""
        self._formulas[council.step] = found
        for rank in council.ranks[2:]:
            council.views.pop(rank, None)
            self._ranks.todo.append(self._task(rank))

    def _answer(self, council: Council, name: str, **fields: Any) -> None:
        for rank in list(self._ranks.live.values()):
            if rank.waits == (council.step, name):
                rank.answer(**fields)

    # -- how they end

    def _ended(self, rank: Played, event: dict[str, Any]) -> None:
        rank.ended = True
        if rank.task.role == BUILDS:
            if event["refused"]:
                self._refuse(event["refused"], event["machines"])
            if event["failed"] and (event["not_reached"] or not event["made"]):
                self._fail(rank, event)
            self._tell("ended", not_reached=event["not_reached"], made=event["made"])
        elif event["failed"] and (event["not_reached"] or not event["made"]):
            self._late = (rank, event)
            self._fail_late()
            return
        if event["refused"]:
            self._not_captured(rank, event["refused"])
        else:
            self._made[rank.task.rank] = event["made"]
            self._refuse_absent(rank.task.rank, event["made"])

    def _fail_late(self) -> None:
        """End for a rank that has failed, once rank 0 waits for it.

        Most often rank 0 fails likewise, and its own failure is the one to tell.
        """
        if self._late is None:
            return
        task = self._late[0].task
        for rank in self._ranks.live.values():
            step, name = rank.waits or ("", "")
            council = self._council.get(step)
            if rank.task.role == BUILDS and council is not None:
                said: dict[str, dict[int, Any]] = {
                    "asked": council.asked, "captured": council.views, "lowered": council.code,
                }  # fmt: skip
                needed = name != "lowered" or task.role == SECONDS
                if needed and task.rank not in said[name]:
                    self._fail(*self._late)

    def _not_captured(self, rank: Played, why: str) -> None:
        """Say of a rank that it cannot capture what it has asked for."""
        number = rank.task.rank
        for step, council in self._council.items():
            waited = number in council.asked and number not in council.views
            if waited and not self._is_stale(rank, step):
                self._heard(rank, {
                    "event": "captured", "step": step, "view": {"rank": number, "error": why},
                })  # fmt: skip

    def _refuse_absent(self, rank: int, made: list[str]) -> None:
        """Refuse a step to which a rank did not come, though another one did."""
        for step, council in self._council.items():
            if rank in council.ranks and step not in made:
                called = ", ".join(str(other) for other in council.asked)
                error = CaptureError(
                    f"rank {rank} ended its script without a call of {step}",
                    got=f"called on rank(s) {called}",
                    why="the others would wait for it for ever",
                    fix="call it on every rank",
                )
                self._refuse(str(error), machines=False)

    def _gone(self, rank: Played) -> None:
        if not rank.ended:
            self._fail(rank, {"failed": "its process ended without a word", "where": ""})

    def _refuse(self, text: str, machines: bool) -> None:
        self._tell("failed" if machines else "refused", text=text)
        raise Stop

    def _fail(self, rank: Played, event: dict[str, Any]) -> None:
        printed = rank.out.read_text(errors="replace").splitlines()[-10:]
        self._tell(
            "script failed", text=event["failed"], where=event.get("where", ""),
            rank=rank.task.rank, printed=printed, own=event.get("own", False),
        )  # fmt: skip
        raise Stop


def preload() -> None:
    """Import what every rank needs, before they are forked."""

    import lockstep.ahead.script
    import lockstep.run.judged  # noqa: F401
    from lockstep.build.fingerprint import own_version

    own_version()  # one for all, whatever becomes of the sources meanwhile


def main(name: str) -> None:
    """Build as FOLDER/job.json says."""
    folder = Path(name)
    out = os.dup(1)
    os.dup2(2, 1)

    def tell(event: str, **fields: Any) -> None:
        os.write(out, json.dumps({"event": event, **fields}).encode() + b"\n")

    preload()
    Server(json.loads((folder / "job.json").read_text()), folder, tell).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
