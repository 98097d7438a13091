"""All obstacles to capturing a script's steps, found in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.report.job import Outcome, run_job


@dataclass(frozen=True)
class CheckedStep:
    """One step: the texts of its obstacles; where there are none, the size of its graph; notes."""

    step: str
    obstacles: list[str]
    nodes: int
    collectives: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    """What one run of a script showed.

    Args:
        steps: those that were called, in the order of their first calls.
        not_called: the names of those that were not.
        failed: the traceback where the script failed after a step was captured.
    """

    steps: list[CheckedStep]
    not_called: list[str]
    failed: str | None

    @property
    def obstacles(self) -> int:
        """How many there are in all."""
        return sum(len(step.obstacles) for step in self.steps)


def check_capture(
    script: Path,
    arguments: Sequence[str],
    *,
    world: int,
    calls: int,
    limit_s: float,
    what: str = "capture",
) -> Checked:
    """Run a script as one rank of a world, and capture each step at its first call.

    Args:
        what: "two-batches": at its first two calls, and the obstacles are constants that moved.
        script: the training script; `arguments` are its own.
        world: ranks that it sees; beyond one, its collectives give back what they get.
        calls: of steps, after which the script is left at the latest.
        limit_s: seconds after which it is stopped.

    Raises:
        UsageError: no step was captured: the script failed before, was stopped, or has none.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-check-") as folder:
        result = Path(folder) / "result.json"
        words = [what, str(result), str(world), str(calls), str(script), *arguments]
        module = [sys.executable, "-m", "lockstep.report.capture_script"]
        outcome = run_job([*module, *words], _environment(folder), limit_s)
        if not result.exists():
            raise no_result(script, outcome, limit_s)
        read = json.loads(result.read_text())
    steps = [CheckedStep(**step) for step in read["steps"]]
    if not steps and what == "capture":
        raise no_step(script, read["failed"], outcome)
    return Checked(steps, read["not_called"], read["failed"])


def _environment(folder: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "LOCKSTEP"}
    return {**env, "LOCKSTEP_RUNS": str(Path(folder) / "runs")}


def lines(checked: Checked) -> Iterator[str]:
    """The report: a block for each obstacle, notes, and a last line that counts."""
    for step in checked.steps:
        for text in step.obstacles:
            yield f"{step.step}: {text}\n"
    for step in checked.steps:
        if not step.obstacles and len(checked.steps) > 1:
            yield f"{step.step} captures: {step.nodes} nodes, {step.collectives} collectives"
    for name in checked.not_called:
        yield f"{name} was not called, and is not checked"
    if checked.failed is not None:
        yield f"the script failed later:\n{checked.failed}"
    if checked.obstacles:
        yield f"{checked.obstacles} obstacle{'s' if checked.obstacles > 1 else ''}"
        return
    nodes = sum(step.nodes for step in checked.steps)
    yield f"captures: {nodes} nodes, {sum(step.collectives for step in checked.steps)} collectives"


def no_result(script: Path, outcome: Outcome, limit_s: float) -> UsageError:
    """The error for a script whose process ended, or was ended, without a word."""
    stopped = outcome.code is None
    return UsageError(
        f"{script} was stopped after {limit_s:g} s"
        if stopped
        else f"{script} ended its process, exit code {outcome.code}",
        got=outcome.tail() or "no output",
        want="a script that calls a compiled step",
        fix="--timeout with more seconds, or a smaller configuration after --" if stopped else None,
    )


def no_step(script: Path, failed: str | None, outcome: Outcome) -> UsageError:
    """The error for a script that came to no step; `failed` is its traceback, where it has one."""
    if failed is None:
        return UsageError(
            f"{script} ended without a call of a compiled step",
            got=outcome.tail(8) or "no output",
            want="a script that calls a step made by @ls.compile",
        )
    return UsageError(
        f"{script} failed before a step was captured",
        got="\n".join([*failed.rstrip().splitlines()[-30:], *outcome.tail(10).splitlines()]),
        fix="LOCKSTEP=off runs the same script eagerly: does it fail there too?",
    )
