"""A script's steps judged on all ranks of a small job: real processes set it up, one judges.

The script runs under torchrun on gloo processes of this machine, so that its broadcasts and seeds
are true. Each process captures each step at its first call; no step communicates. The captures come
together here, where all witnesses are asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import linecache
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.checker.check import conclude, parted_report, witnesses
from lockstep.checker.finding import Report
from lockstep.checker.live.meeting import Parted
from lockstep.checker.placement import same_batch
from lockstep.checker.repair.edits import Edit
from lockstep.checker.repair.patch import edited_texts
from lockstep.checker.shipping import from_bytes
from lockstep.checker.simulation import twin
from lockstep.checker.simulation.gold import Gold
from lockstep.checker.source import full_path
from lockstep.checker.verdict import Witnesses
from lockstep.checker.world import World
from lockstep.errors import CaptureError, LockstepError, UsageError
from lockstep.report.check import no_result, no_step
from lockstep.report.hub import Hub
from lockstep.report.job import Outcome, run_job
from lockstep.report.world_check import LIVE, Shipped
from lockstep.run import edited
from lockstep.spmd.mesh import SIZES


@dataclass(frozen=True)
class JudgedStep:
    """One step: its report, or why it could not be captured.

    Args:
        seen: what each witness said; None where none was asked.
    """

    step: str
    report: Report
    refused: str = ""
    seen: Witnesses | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether it was judged and found right."""
        return not self.refused and self.report.ok


@dataclass(frozen=True)
class Judged:
    """What one run of a script showed.

    Args:
        not_called: the steps that it did not reach.
        failed: the traceback where it failed after a step was captured.
        ran: the job that showed it: with the steps that ran live.
    """

    steps: list[JudgedStep]
    not_called: list[str]
    failed: str = ""
    ran: Job | None = None

    @property
    def ok(self) -> bool:
        """Whether every step that was called is right."""
        return all(step.ok for step in self.steps)

    def edits(self) -> list[Edit]:
        """The verified fixes of all steps."""
        return [edit for step in self.steps for edit in step.report.edits()]


@dataclass(frozen=True)
class Job:
    """How the script is run.

    Args:
        arguments: its own.
        sizes: of mesh axes, in place of the script's.
        calls: of steps, after which it is left.
        limit_s: seconds after which it is stopped.
        edits: lines that are other ones in this run; the files stay as they are.
        live: step -> why it is run live, op by op, and not captured.
        rounded: those run in their own dtypes, as they do not run in float64.
    """

    script: Path
    arguments: Sequence[str]
    world: int
    sizes: dict[str, int]
    calls: int
    limit_s: float
    edits: tuple[Edit, ...] = ()
    live: Mapping[str, str] = field(default_factory=dict)
    rounded: bool = False


def check_world(job: Job, repair_s: float = 0.0) -> Judged:
    """Run a script on real processes, capture its steps there, and judge them here.

    Args:
        repair_s: seconds in which fixes of what is found may be tried out, each by running the
            script's set-up anew from edited text.

    Raises:
        UsageError: no step was captured: the script failed before, was stopped, or has none; or its
            mesh is not as `job.sizes` asks.
    """
    from lockstep.report.check_repair import repair

    with importing_beside(job.script):
        judged = examine(job)
        if repair_s > 0:
            repair(job, judged, repair_s)
    return judged


def examine(job: Job, hopeful: bool = False) -> Judged:
    """Run a script and judge its steps as they are; see `check_world`.

    Args:
        hopeful: of a step in which some witness finds a fault, do not ask the others.
    """
    job, ran = tapes(job)
    alone = functools.cache(lambda: captures(_alone(job, ran)).parts)
    steps = [
        _parted(name, ran.parted[name], job)
        if name in ran.parted
        else _judge(job, name, held, alone, hopeful)
        for name, held in ran.parts.items()
    ]
    return Judged(steps, ran.not_called, ran.failed, job)


def _parted(name: str, parted: Parted, job: Job) -> JudgedStep:
    parted.live = job.live[name]
    report, seen = parted_report(parted, Report())
    return JudgedStep(name, report, seen=seen)


Parts = dict[str, list[tuple[Shipped, bytes]]]  # step -> what each rank that called it captured


@dataclass(frozen=True)
class Captures:
    """What a job's ranks captured; `failed` is a traceback, where a rank failed after that.

    Args:
        parted: steps that ran live, and whose ranks' collectives did not meet.
    """

    parts: Parts
    not_called: list[str]
    failed: str = ""
    parted: dict[str, Parted] = field(default_factory=dict)


def tapes(job: Job) -> tuple[Job, Captures]:
    """Run the script until its steps are captured; once more if some can only be run live.

    Returns:
        The job that captured all there is, and what it captured.
    """
    ran = captures(job)
    refused = {
        name: next(part.why for part, _ in held if part.why)
        for name, held in ran.parts.items()
        if len(held) == job.world and any(part.why for part, _ in held)
    }
    if job.live or not refused:
        return job, ran
    job = dataclasses.replace(job, live=refused)
    ran = captures(job)
    failed = [name for name in refused if any(part.refused for part, _ in ran.parts.get(name, ()))]
    if all(name in ran.parted for name in failed):
        return job, ran
    job = dataclasses.replace(job, rounded=True)
    return job, captures(job)


def captures(job: Job) -> Captures:
    """Run the script until its steps are captured.

    Raises:
        UsageError: no step was captured.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-check-") as name:
        folder = Path(name)
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.world)]
        module = ["-m", "lockstep.report.world_script", name, str(job.calls), str(job.script)]
        command = [sys.executable, *launch, *module, *job.arguments]
        with _live(job, folder) as hub:
            outcome = run_job(command, _environment(job, folder), job.limit_s)
        read = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        parts: Parts = {}
        for rank in read:
            for row in rank["shipped"]:
                part = Shipped(**{**row, "data": tuple(row["data"])})
                data = (folder / part.file).read_bytes() if part.file else b""
                parts.setdefault(part.step, []).append((part, data))
    failed = [rank["failed"] for rank in read if rank["failed"]]
    if not parts or (failed and any(len(held) < job.world for held in parts.values())):
        raise _nothing(job, failed, bool(read), outcome)
    not_called = {name for rank in read for name in rank["not_called"]} - set(parts)
    parted = hub.parted if hub is not None else {}
    return Captures(parts, sorted(not_called), failed[0] if failed else "", parted)


@contextlib.contextmanager
def _live(job: Job, folder: Path) -> Iterator[Hub | None]:
    """Where the ranks meet whose steps run live, while inside."""
    if not job.live:
        yield None
        return
    address = folder / "hub"
    hub = Hub(address)
    told = {"steps": list(job.live), "hub": str(address), "doubles": not job.rounded}
    (folder / LIVE).write_text(json.dumps(told))
    with hub.serving():
        yield hub


def _environment(job: Job, folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LOCKSTEP", SIZES, edited.VARIABLE)}
    sizes = ",".join(f"{axis}={size}" for axis, size in job.sizes.items())
    none = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # gloo and the CPU alone
    one = {"OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", "1")}
    if job.edits:
        texts = folder / "edited"
        texts.write_text(json.dumps(edited_texts(job.edits)))
        one[edited.VARIABLE] = str(texts)
    return {**env, **none, **one, "LOCKSTEP_RUNS": str(folder / "runs"), SIZES: sizes}


def _nothing(job: Job, failed: list[str], ended: bool, outcome: Outcome) -> UsageError:
    if ended:
        return no_step(job.script, failed[0] if failed else None, outcome)
    return no_result(job.script, outcome, job.limit_s)


def _judge(
    job: Job,
    name: str,
    parts: list[tuple[Shipped, bytes]],
    alone: Callable[[], Parts],
    hopeful: bool,
) -> JudgedStep:
    report = Report(live=job.live.get(name, ""))
    refused = dict.fromkeys(part.refused for part, _ in parts if part.refused)
    if refused:
        head = [f"not captured: {report.live}; and live:"] if report.live else []
        return JudgedStep(name, report, "\n".join([*head, *refused]))
    if len(parts) != job.world:
        there = ", ".join(str(part.place) for part, _ in parts)
        told = CaptureError(
            f"not every rank called {name}",
            got=f"rank(s) {there} of {job.world}",
            why="the others wait in its collectives for ever",
            fix="call it on every rank",
        )
        return JudgedStep(name, report, str(told))
    world = world_of(parts)
    world.rounded = job.rounded and name in job.live
    _refuse_other_mesh(job, name, world)
    report.established.append(f"set-up: {job.script} ran on {job.world} gloo process(es)")
    data = tuple(axis for axis in parts[0][0].data if axis in world.mesh)
    for axis in data:
        equal = same_batch(world, axis)
        if equal:
            report.undecided.append(
                f"{', '.join(equal)}: the same on every rank of {axis}, though data={axis!r}; "
                "each rank was given its own here"
            )
    pending = parts[0][0].pending
    seen = witnesses(world, lambda _: twin.Twin(why_not="not asked"), report, data, pending)
    if seen.gold is not None and not (hopeful and seen.fault):
        with report.timed("twin"):
            seen.twin = _one_rank(alone, name, world, seen.gold)
    conclude(world, seen, report, pending)
    return JudgedStep(name, report, seen=seen)


def world_of(parts: list[tuple[Shipped, bytes]]) -> World:
    """All ranks' captures of one step together."""
    traces = sorted((from_bytes(data) for _, data in parts), key=lambda trace: trace.rank)
    return World(parts[0][0].mesh, traces)


def _alone(job: Job, ran: Captures) -> Job:
    """The same script on a mesh of ones."""
    axes = dict.fromkeys(axis for held in ran.parts.values() for axis in held[0][0].mesh)
    return dataclasses.replace(job, world=1, sizes=dict.fromkeys(axes, 1))


def _one_rank(alone: Callable[[], Parts], name: str, world: World, gold: Gold) -> twin.Twin:
    """Compare with the script on one rank, once for all steps; it may well not run there."""
    try:
        parts = alone()
        if name not in parts or parts[name][0][0].refused:
            return twin.Twin(why_not="on one rank the script does not come to this step")
        one = world_of(parts[name])
        if set(one.mesh) != set(world.mesh) or len(one.ranks) != 1:
            return twin.Twin(why_not=f"on one rank the mesh of {name} is {one.mesh}")
    except LockstepError as error:
        return twin.Twin(why_not=f"on one rank: {error.what}")
    return twin.beside(world, gold, one)


def _refuse_other_mesh(job: Job, name: str, world: World) -> None:
    other = {a: s for a, s in job.sizes.items() if world.mesh.get(a) != s}
    if other:
        raise UsageError(
            f"the mesh of {name} has other axes or sizes",
            got=", ".join(f"{a}={s}" for a, s in world.mesh.items()),
            want=", ".join(f"{a}={s}" for a, s in other.items()),
            why="--mesh sets the sizes of a mesh that ls.mesh makes, and no other's",
        )
    if len(world.ranks) != job.world:
        raise UsageError(f"the mesh of {name} leaves out ranks of the job", got=str(world.mesh))


@contextlib.contextmanager
def importing_beside(script: Path) -> Iterator[None]:
    """Look for source files where the script's own imports do, as they are now, while inside."""
    folder = str(script.resolve().parent)
    sys.path.insert(0, folder)
    full_path.cache_clear()
    linecache.checkcache()
    try:
        yield
    finally:
        sys.path.remove(folder)
        full_path.cache_clear()
