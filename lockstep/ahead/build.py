"""Build a script's steps ahead of time: a process plays the ranks, a store gets the artifacts."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.report.job import end
from lockstep.spmd.mesh import SIZES

Hear = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """What is built.

    Args:
        sizes: of mesh axes, in place of the script's.
        steps: the names of those that are made; none: all.
        store: where artifacts go; None: where the job itself looks for them.
        device: "cpu", where the job is to compute there in spite of an accelerator.
        real: the set-up runs truly, not below fake tensors.
        all_coordinates: every rank is traced, however many there are.
        calls: of steps, after which the script is left.
        limit_s: seconds after which it is stopped.
        most: ranks that are played at a time.
        roles: the axes along which ranks run other programs, where `members` are one role's.
        members: the ranks that share the programs that are made; none: all.
    """

    script: Path
    arguments: tuple[str, ...]
    world: int
    sizes: dict[str, int]
    steps: tuple[str, ...] = ()
    store: str | None = None
    device: str = ""
    real: bool = False
    all_coordinates: bool = False
    calls: int = 1000
    limit_s: float = 3600.0
    most: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    roles: tuple[str, ...] = ()
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Built:
    """One artifact.

    Args:
        path: its file in the store, or its URL.
        manifest: what stands in it.
    """

    step: str
    path: str
    data: bytes = field(repr=False)
    manifest: dict[str, Any] = field(repr=False)


@dataclass
class Ahead:
    """What a build came to.

    Args:
        made: the steps that it called.
        not_reached: those that it did not call.
        notes: what it did besides, and what was left out.
        refused: why a step cannot be built, as the check or a comparison says it.
        failed: why the build could not be made.
        used: its seconds, the most memory of a process, and how many ranks were traced.
    """

    built: list[Built] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: str = ""
    failed: str = ""
    used: dict[str, float] = field(default_factory=dict)

    @property
    def code(self) -> int:
        """The exit code: 0 built, 1 refused, 2 could not run."""
        return 2 if self.failed else 1 if self.refused else 0


@dataclass
class Roles:
    """What a first run has found of roles: the mesh's sizes, outermost first, and their axes."""

    sizes: dict[str, int] = field(default_factory=dict)
    axes: tuple[str, ...] = ()

    def members(self) -> list[tuple[int, ...]]:
        """The ranks of each role; none where there are no roles.

        Example:
            >>> Roles({"pp": 2, "dp": 2}, ("pp",)).members()
            [(0, 1), (2, 3)]
            >>> Roles({"dp": 2, "pp": 2}, ("pp",)).members()
            [(0, 2), (1, 3)]
        """
        if not self.axes:
            return []
        places = itertools.product(*map(range, self.sizes.values()))
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(places):
            at = dict(zip(self.sizes, place, strict=True))
            found.setdefault(tuple(at[axis] for axis in self.axes), []).append(rank)
        return [tuple(ranks) for ranks in found.values()]


def build(job: Job, hear: Hear = lambda event: None) -> Ahead:
    """Run the script as every rank that is traced, and put its steps' artifacts into the store.

    Where a step has roles, that is done for each of them.

    Args:
        hear: told each event as it happens, such as the stage of a step.

    Raises:
        StoreError: the store takes nothing.
    """
    ahead, roles = Ahead(), Roles()
    _play(job, ahead, hear, roles)
    for members in roles.members() if not ahead.code else ():
        _play(dataclasses.replace(job, roles=roles.axes, members=members), ahead, hear, roles)
        if ahead.code:
            return ahead
    if not ahead.failed and job.steps and ahead.not_reached:
        ahead.failed = str(_not_reached(job, ahead.not_reached, ahead.made))
    elif not (ahead.made or ahead.refused or ahead.failed):
        ahead.failed = str(_no_step(job, ahead.not_reached))
    return ahead


def _play(job: Job, ahead: Ahead, hear: Hear, roles: Roles) -> None:
    """Run the script as the ranks of one role, or as all ranks."""
    ended = False
    with tempfile.TemporaryDirectory(prefix="lockstep-build-") as name:
        folder = Path(name)
        words = {**dataclasses.asdict(job), "script": str(job.script)}
        (folder / "job.json").write_text(json.dumps(words))
        for event in _events(job, folder):
            hear(event)
            ended |= event["event"] == "used"
            if event["event"] == "roles":
                roles.sizes, roles.axes = event["sizes"], tuple(event["roles"])
            _take(ahead, job, folder, event)
        if not ended:
            ahead.failed = str(_silent(job, folder))


def _take(ahead: Ahead, job: Job, folder: Path, event: dict[str, Any]) -> None:
    name = event["event"]
    if name == "note" and event["text"] not in ahead.notes:
        ahead.notes.append(event["text"])
    elif name == "packed":
        built = _kept(job, folder, event)  # of a step without roles, each of them makes it
        ahead.built = [one for one in ahead.built if one.path != built.path] + [built]
    elif name == "ended":
        ahead.made = list(dict.fromkeys([*ahead.made, *event["made"]]))
        missed = dict.fromkeys([*ahead.not_reached, *event["not_reached"]])
        ahead.not_reached = [step for step in missed if step not in ahead.made]
    elif name == "refused":
        ahead.refused = event["text"]
    elif name == "failed":
        ahead.failed = event["text"]
    elif name == "script failed":
        ahead.failed = event["text"] if event["own"] else str(_failed(job, event))
    elif name == "used":
        used = {key: value for key, value in event.items() if key != "event"}
        ahead.used = _more(used, ahead.used)


def _more(used: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """What several runs used: the most memory of any, and of all else the sum."""
    return {k: max(v, before.get(k, 0)) if k == "peak_mb" else v + before.get(k, 0)
            for k, v in used.items()}  # fmt: skip


def _kept(job: Job, folder: Path, event: dict[str, Any]) -> Built:
    from lockstep.build.artifact import Artifact
    from lockstep.fleet.store import ArtifactStore, named_store

    data = (folder / event["file"]).read_bytes()
    store = ArtifactStore(named_store(job.store or event["store"]))
    store.write(event["file"], data, required=True)
    manifest = Artifact.from_bytes(data, event["file"]).manifest
    return Built(event["step"], store.where_of(event["file"]), data, manifest)


def _events(job: Job, folder: Path) -> Iterator[dict[str, Any]]:
    """Start the process that plays the ranks; what it tells, until it has ended."""
    command = [sys.executable, "-m", "lockstep.ahead.server", str(folder)]
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env=_environment(job, folder),
            start_new_session=True,
        )  # fmt: skip
    limit = threading.Timer(job.limit_s, end, [process])
    limit.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
        process.wait()
    finally:
        limit.cancel()
        end(process)
        if process.stdout is not None:
            process.stdout.close()


def _environment(job: Job, folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LOCKSTEP", SIZES)}
    sizes = ",".join(f"{axis}={size}" for axis, size in job.sizes.items())
    if job.world > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    if job.device == "cpu":
        env |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return {**env, "LOCKSTEP_RUNS": str(folder / "runs"), SIZES: sizes}


# ---- what went wrong


def _no_step(job: Job, not_reached: list[str]) -> UsageError:
    return UsageError(
        f"{job.script} ended without a call of a compiled step",
        got=f"not reached: {', '.join(not_reached)}" if not_reached else "it makes none",
        want="a script that calls a step made by @ls.compile",
    )


def _not_reached(job: Job, names: list[str], made: list[str]) -> UsageError:
    return UsageError(
        f"{job.script} does not come to {', '.join(names)}",
        got=f"steps that it calls: {', '.join(made) or 'none'}",
        want="what --steps names",
    )


def _failed(job: Job, event: dict[str, Any]) -> UsageError:
    rank = f" as rank {event['rank']}" if event["rank"] else ""
    shown = [*event["text"].rstrip().splitlines()[-30:], *event["printed"]]
    below = "" if job.real else ", below fake tensors"
    return UsageError(
        f"{job.script} failed{rank}{below}",
        where=event["where"] or None,
        got="\n".join(shown),
        why=None if job.real else "its set-up runs without values, so that it takes no memory",
        fix=[
            *([] if job.real else ["lockstep build --real runs the set-up truly"]),
            "LOCKSTEP=off runs the same script eagerly: does it fail there too?",
        ],
    )


def _silent(job: Job, folder: Path) -> UsageError:
    errors = (folder / "errors").read_text(errors="replace").splitlines()
    return UsageError(
        f"the build of {job.script} was stopped, or ended by itself",
        got="\n".join(errors[-20:]) or f"nothing within {job.limit_s:g} s",
        fix="--timeout with more seconds, or a smaller configuration after --",
    )
