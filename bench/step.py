"""What a step costs: Lockstep's program beside torch.compile's and eager, step by step in turn.

    python bench/step.py --steps 60

One process, one rank, one thread. The ways take turns, so that a busy moment of the machine falls
on all of them. Memory is the peak of all live tensor bytes that a step allocates, gradients
included, parameters and inputs not.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script

from bench.measure import spread

TORCH, OURS, GRAPH, EAGER = "torch.compile", "Lockstep, inductor", "Lockstep, graph", "eager"
LIMIT = 1.03

Step = Callable[[], Any]


def ways(layers: int, batch: int, length: int) -> tuple[dict[str, Step], Callable[[], None]]:
    """Return each way's step, and what clears the gradients between two steps."""
    import torch

    import lockstep as ls
    from lockstep.models import llama

    torch.set_num_threads(1)
    mesh = ls.mesh("cpu", dp=-1)
    torch.manual_seed(0)
    model = llama.Llama(llama.config("debug", layers=layers))
    tokens = torch.randint(256, (batch, length + 1))

    def train_step(model: llama.Llama, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(tokens, labels), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss.detach()

    steps = {
        TORCH: torch.compile(train_step),
        OURS: ls.compile(mesh=mesh, data="dp")(train_step),
        GRAPH: ls.compile(mesh=mesh, data="dp", backend="graph")(train_step),
        EAGER: train_step,
    }

    def bound(step: Callable[..., Any]) -> Step:
        return lambda: step(model, tokens[:, :-1], tokens[:, 1:])

    return {name: bound(step) for name, step in steps.items()}, model.zero_grad


def seconds(
    steps: dict[str, Step], clear: Callable[[], None], count: int
) -> dict[str, list[float]]:
    """Run every way `count` times in turn and return the seconds of each step."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(count):
        for name in order:
            clear()
            start = time.perf_counter()
            steps[name]()
            taken[name].append(time.perf_counter() - start)
        order.append(order.pop(0))  # no way always follows the same other
    return taken


def peak_bytes(step: Step) -> int:
    """Return the most bytes of tensors that were live at once of those that a step allocated."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    del kept
    return peak


def main(steps: int = 60, layers: int = 4, batch: int = 8, length: int = 128) -> int:
    """Measure, print, and return 0 where Lockstep's step is at most 1.03 times torch.compile's.

    Args:
        steps: of each way that are timed.
        layers: of the debug Llama.
        batch: sequences in a step.
        length: tokens in a sequence.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
        os.environ["LOCKSTEP_STORE"] = f"{folder}/store"
        os.environ["LOCKSTEP_RUNS"] = f"{folder}/runs"
        os.environ["KINETO_LOG_LEVEL"] = "99"  # the profiler looks for accelerators, loudly
        made, clear = ways(layers, batch, length)
        seconds(made, clear, 3)  # compile, and one step more
        taken = seconds(made, clear, steps)
        peaks = {}
        for name, step in made.items():
            clear()
            peaks[name] = peak_bytes(step)
    console = Console()
    table = Table(
        "", "ms a step, median (low-high)", "peak live MiB", title=f"{steps} steps in turn"
    )
    for name in made:
        milliseconds = [1e3 * second for second in taken[name]]
        table.add_row(name, spread(milliseconds), f"{peaks[name] / 2**20:.2f}")
    console.print(table)
    ratio = statistics.median(taken[OURS]) / statistics.median(taken[TORCH])
    holds = "holds" if ratio <= LIMIT else "FAILS"
    memory = ", ".join(f"{name} {peak / 2**20:.2f}" for name, peak in peaks.items())
    print(f"peak live MiB: {memory}")
    print(f"{holds}: a step takes {ratio:.3f} times torch.compile's, at most {LIMIT}")
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
