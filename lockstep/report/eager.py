"""A script's steps run eagerly beside their captured graphs, on real gloo ranks of this machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.report.check import no_result, no_step
from lockstep.report.job import run_job
from lockstep.spmd.mesh import SIZES


@dataclass(frozen=True)
class Compared:
    """What one run of a script showed.

    Args:
        world: the ranks that it ran on.
        steps: step -> what would stand in its manifest under "eager".
        refused: step -> why it cannot be captured, or how its graph differs from it.
        not_called: the steps that the script did not reach.
        failed: the traceback where it failed after a step was compared.
    """

    world: int
    steps: dict[str, dict[str, Any]]
    refused: dict[str, str]
    not_called: list[str]
    failed: str = ""

    @property
    def ok(self) -> bool:
        """Whether no step that was called is refused."""
        return not self.refused


def compare_eager(
    script: Path,
    arguments: Sequence[str],
    *,
    world: int,
    sizes: dict[str, int],
    calls: int,
    limit_s: float,
) -> Compared:
    """Run a script on real processes, and compare each step with its graph at its first call.

    Args:
        arguments: the script's own.
        sizes: of mesh axes, in place of the script's.
        calls: of steps, after which it is left at the latest.
        limit_s: seconds after which it is stopped.

    Raises:
        UsageError: no step was called: the script failed before, was stopped, or has none.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-eager-") as name:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
        module = ["-m", "lockstep.report.eager_script", name, str(calls), str(script)]
        command = [sys.executable, *launch, *module, *arguments]
        outcome = run_job(command, _environment(Path(name), sizes), limit_s)
        found = [json.loads(path.read_text()) for path in sorted(Path(name).glob("*.json"))]
    failed = next((one["failed"] for one in found if one["failed"]), "")
    refused = {step: text for one in reversed(found) for step, text in one["refused"].items()}
    steps = {step: row for one in reversed(found) for step, row in one["steps"].items()}
    if not found:
        raise no_result(script, outcome, limit_s)
    if not (refused or steps):
        raise no_step(script, failed or None, outcome)
    called = {*refused, *steps}
    left = [name for one in found for name in one["not_called"] if name not in called]
    steps = {step: row for step, row in steps.items() if step not in refused}
    return Compared(world, steps, refused, list(dict.fromkeys(left)), failed)


def _environment(folder: Path, sizes: dict[str, int]) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LOCKSTEP", SIZES)}
    none = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # gloo and the CPU alone
    mesh = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    one = {"OMP_NUM_THREADS": env.get("OMP_NUM_THREADS", "1"), SIZES: mesh}
    return {**env, **none, **one, "LOCKSTEP_RUNS": str(folder / "runs")}


def lines(compared: Compared) -> Iterator[str]:
    """The report: a line for each step, or the text of its refusal."""
    ranks = f"{compared.world} rank{'s' if compared.world > 1 else ''}"
    for step, text in compared.refused.items():
        yield f"{step}:\n{text}\n"
    for step, row in compared.steps.items():
        if row["result"] != "equal":
            yield f"{step}: {row['result']}: {row['why']}"
            continue
        counts = [f"{name} {count} times" for name, count in row["collectives"].items()]
        told = "; ".join([f"{row['compared']} values on each of {ranks}", *counts])
        yield f"{step}: its graph gave the bits of the step: {told}"
    for name in compared.not_called:
        yield f"{name} was not called, and is not compared"
    if compared.failed:
        yield f"the script failed later:\n{compared.failed}"
