"""The same script three ways, from empty caches and then again: who compiled, and at what cost."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.errors import FleetError, UsageError
from lockstep.journal import read_journals
from lockstep.report.compilers import Recorder
from lockstep.report.job import Outcome, run_job
from lockstep.report.page.run import Run, run_of
from lockstep.run.modes import ON, TORCH, TORCH_ONE_RANK

STARTS = ("cold", "warm")
WAYS = {TORCH: "torch", TORCH_ONE_RANK: "torch+flag", ON: "Lockstep"}
# What would make two ways share a cache, or a way not be what it is called.
_OWN = (
    "LOCKSTEP",
    "TORCH_COMPILE_ON_ONE_RANK",
    "LOCKSTEP_STORE",
    "LOCKSTEP_RUNS",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)


@dataclass(frozen=True)
class Row:
    """What one rank did for one program, in one start of one way.

    Args:
        way: a key of WAYS; `start`: "cold" or "warm".
        role: "built", "loaded", or "refused" by torch's compiler.
        path, digest: of the artifact: Lockstep's file; of torch, the cache's folder and a digest of
            the keys of the graphs in it. None: it was kept nowhere.
        compile_s: seconds of compiling: capture and lowering, or Dynamo and all that it calls.
        first_call_s: seconds of the first call, run included.
        compilers: compiler processes that this rank started, in all.
        flag: `compile_on_one_rank` in this rank: "on", "off", or "building": on while it builds.
        device: its kind, "cpu" or "cuda"; `devices`: how many this machine has; `index`: this
            rank's, where they have one.
    """

    way: str
    start: str
    rank: int
    program: str
    role: str
    path: str | None
    digest: str | None
    compile_s: float
    first_call_s: float
    compilers: int
    flag: str
    device: str
    devices: int | None
    index: int | None
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """All rows, and what they have in common."""

    script: str
    world: int
    torch: str
    rows: list[Row]
    wall_s: dict[str, dict[str, float]]
    """Seconds of the whole job: by way and start."""
    runs: list[Run] = field(default_factory=list)
    """What each job's page shows, in the order of the jobs."""


def compare(
    script: Path,
    arguments: Sequence[str],
    *,
    world: int,
    folder: Path,
    limit_s: float,
    ways: Sequence[str] = tuple(WAYS),
    tell: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Run a script under torchrun in each way, cold and then warm.

    Args:
        script: the training script; it must end by itself. `arguments` are its own.
        world: ranks of each job, on this machine.
        folder: where each way keeps its caches, store and journals.
        limit_s: seconds after which a job is stopped.
        ways: keys of WAYS.
        tell: gets a line before each job.

    Raises:
        FleetError: a job failed, or was stopped at the limit; holds the end of its output.
        UsageError: the script called no compiled step.
    """
    rows: list[Row] = []
    pages: list[Run] = []
    wall: dict[str, dict[str, float]] = {way: {} for way in ways}
    versions = set()
    for way in ways:
        recorder = Recorder(folder / way / "compilers")
        env = recorder.environment(_environment(way, folder / way))
        for start in STARTS:
            tell(f"{WAYS[way]}, {start}: {script} on {world} rank(s)")
            recorder.clear()
            runs = folder / way / f"runs-{start}"
            outcome = run_job(_torchrun(script, arguments, world), _with_runs(env, runs), limit_s)
            events = read_journals(runs / "latest")
            refused = any(event["event"] == "refused" for event in events)
            if outcome.code != 0 and not refused:
                raise _failed(script, way, start, outcome, limit_s)
            found = rows_of(way, start, events, recorder)
            if not found:
                raise _nothing_compiled(script, outcome)
            rows += found
            pages.append(run_of(events, f"{WAYS[way]}, {start}", str(runs / "latest")))
            wall[way][start] = round(outcome.seconds, 3)
            versions |= {event["torch"] for event in events}
            if refused:
                break
    return Comparison(str(script), world, ", ".join(sorted(versions)), rows, wall, pages)


def _environment(way: str, folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in _OWN}
    env["LOCKSTEP"] = "" if way == ON else way
    env["LOCKSTEP_STORE"] = str(folder / "store")
    env["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    env["TRITON_CACHE_DIR"] = str(folder / "triton")
    env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it, without its warning
    return env


def _with_runs(env: dict[str, str], runs: Path) -> dict[str, str]:
    return {**env, "LOCKSTEP_RUNS": str(runs)}


def _torchrun(script: Path, arguments: Sequence[str], world: int) -> list[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    return [sys.executable, *launch, str(script), *arguments]


def rows_of(way: str, start: str, events: list[dict[str, Any]], recorder: Recorder) -> list[Row]:
    """The rows of one job, from its journals and from the compilers that were recorded."""
    first = {
        (e["rank"], e["step"], e["variant"]): e["seconds"]
        for e in reversed(events)
        if e["event"] == "ran"
    }
    rows = []
    for event in events:
        if event["event"] == "ready":
            run_s = first.get((event["rank"], event["step"], event["variant"]), 0.0)
            rows.append(_ready_row(way, start, event, run_s, recorder))
        elif event["event"] == "refused":
            rows.append(_refused_row(way, start, event, recorder))
    return sorted(rows, key=lambda row: (row.program, row.rank))


def _ready_row(
    way: str, start: str, event: dict[str, Any], run_s: float, recorder: Recorder
) -> Row:
    seconds = event["seconds"]
    ours = way == ON
    compile_s = seconds.get("build", 0.0) if ours else seconds["compile"]
    started = recorder.started(event["rank"])
    return Row(
        way=way,
        start=start,
        rank=event["rank"],
        program=f"{event['step']} {event['variant']}",
        role=event["role"],
        path=event["path"],
        digest=event["digest"],
        compile_s=compile_s,
        # Torch compiles in the middle of the first call, Lockstep before it runs.
        first_call_s=seconds["total"] + seconds["load"] + run_s if ours else seconds["total"],
        compilers=started.total(),
        flag=_flag(ours, event),
        device=event["device"],
        devices=event.get("devices"),
        index=event["index"],
        detail={
            **{k: event[k] for k in ("frames", "lowerings", "hits", "misses") if k in event},
            "processes": dict(started),
            "seconds": seconds,
            "by": event["by"],
        },
    )


def _refused_row(way: str, start: str, event: dict[str, Any], recorder: Recorder) -> Row:
    return Row(
        way=way,
        start=start,
        rank=event["rank"],
        program=event["step"],
        role="refused",
        path=None,
        digest=None,
        compile_s=0.0,
        first_call_s=0.0,
        compilers=recorder.started(event["rank"]).total(),
        flag=_flag(False, event),
        device=event["device"],
        devices=event.get("devices"),
        index=event["index"],
        detail={"text": event["text"]},
    )


def _flag(ours: bool, event: dict[str, Any]) -> str:
    if ours and event["role"] == "built":
        return "building"
    return "on" if event["flag"] else "off"


def _failed(script: Path, way: str, start: str, outcome: Outcome, limit_s: float) -> FleetError:
    stopped = outcome.code is None
    how = f"was stopped after {limit_s:g} s" if stopped else f"failed, exit code {outcome.code}"
    variable = "" if way == ON else f"LOCKSTEP={way} "
    fixes = [f"{variable}torchrun {script} alone shows the same"]
    return FleetError(
        f"{script} {how} ({WAYS[way]}, {start})",
        got=outcome.tail() or "no output",
        fix=["--timeout with more seconds", *fixes] if stopped else fixes,
    )


def _nothing_compiled(script: Path, outcome: Outcome) -> UsageError:
    return UsageError(
        f"{script} ended without a call of a compiled step",
        got=outcome.tail(8) or "no output",
        want="a script that calls a step made by @ls.compile",
    )
