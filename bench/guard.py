"""What `ls.compile(guard=True)` costs a call: the same step guarded and not, call by call in turn.

    python bench/guard.py --ranks 2

Real ranks on this machine, gloo over loopback. Exits with 0 where a guarded call of a small Llama
takes at most 1.1 times the plain one's time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script

from bench.measure import spread

LIMIT = 1.1
WARM = 10


def steps() -> tuple[dict[str, Callable[[], Any]], Callable[[], None]]:
    """Return the step, plain and guarded, and what clears the gradients between two calls."""
    import torch

    import lockstep as ls
    from lockstep.models import llama

    mesh = ls.mesh("cpu", dp=-1)
    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug"))
    tokens = torch.randint(256, (4, 65))

    def train_step(model: llama.Llama, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(tokens, labels), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss.detach()

    made = {
        name: ls.compile(mesh=mesh, data="dp", backend="graph", guard=guard)(train_step)
        for name, guard in (("plain", False), ("guarded", True))
    }
    inputs = (model, tokens[:, :-1], tokens[:, 1:])
    return {name: lambda step=step: step(*inputs) for name, step in made.items()}, model.zero_grad


def measure(calls: int) -> int:
    """On a rank: call both in turn; rank 0 prints what they took."""
    import torch.distributed as dist

    ways, clear = steps()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARM + calls):
        for name, way in ways.items():
            clear()
            dist.barrier()
            begin = time.perf_counter()
            way()
            if number >= WARM:
                seconds[name].append(time.perf_counter() - begin)
    plain, guarded = (statistics.median(taken) for taken in seconds.values())
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if rank == 0:
        for name, taken in seconds.items():
            print(f"{name}: {spread([1000 * one for one in taken])} ms a call")
        print(
            f"{world} ranks: a guarded call costs {1e6 * (guarded - plain):.0f} us more, "
            f"{guarded / plain:.3f} times the plain one (at most {LIMIT})"
        )
    return 0 if guarded / plain <= LIMIT else 1


def main(ranks: int = 2, calls: int = 60) -> int:
    """Start the ranks, or measure as one of them.

    Args:
        ranks: on this machine.
        calls: of each way.
    """
    if "RANK" in os.environ:
        return measure(calls)
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "LOCKSTEP_STORE": f"{folder}/store", "LOCKSTEP_RUNS": f"{folder}/runs"}
        command = ["--standalone", "--nproc-per-node", str(ranks), __file__, "--calls", str(calls)]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *command]
        return subprocess.run(torchrun, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
