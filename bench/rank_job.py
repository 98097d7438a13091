"""A script of a bench on several ranks, with caches of its own; and the step that they share."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.report.job import run_job

ROOT = Path(__file__).parent.parent


def on_ranks(
    script: str,
    ranks: int,
    words: Sequence[str],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Run a script of this folder on ranks; return what each wrote to `rank<N>.json` below --out.

    Raises:
        SystemExit: the job failed; its output is shown.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "LOCKSTEP_STORE": f"{folder}/store",
            "LOCKSTEP_RUNS": f"{folder}/runs",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "KINETO_LOG_LEVEL": "99",  # the profiler looks for accelerators, loudly
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
        }
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *launch, str(ROOT / "bench" / script), "--out", folder, *words]
        done = run_job(command, env, limit_s)
        if done.code != 0:
            raise SystemExit(f"{done.output}\n{script}: the job ended with {done.code}")
        return [json.loads(Path(folder, f"rank{rank}.json").read_text()) for rank in range(ranks)]


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options as the words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def data_parallel(layers: int, batch: int, length: int) -> tuple[Any, Any, Callable[..., Any]]:
    """A debug Llama, this rank's tokens, and a step that reduces the gradients over dp."""
    import torch
    import torch.distributed as dist

    import lockstep as ls
    from lockstep.models import llama

    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", layers=layers))
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(256, (batch, length + 1), generator=generator)

    def train_step(model: llama.Llama, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(tokens, labels), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss.detach()

    return model, tokens, train_step
