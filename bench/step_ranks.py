"""One rank of a data-parallel step on a slow network, in several ways. Started by step.py.

The ways take turns, and the ranks meet before each step, so that nobody pays for another's delay.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tyro

import bench.slow_network
import lockstep as ls
from bench.rank_job import data_parallel
from bench.step import OURS, PLAIN, TORCH, peak_bytes

NONE = {"bucket": False, "overlap": False}


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    """Copies of a model's gradients."""
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def main(out: Path, steps: int, layers: int, batch: int, length: int) -> None:
    """Run all ways in turn and write `rank<N>.json`.

    Args:
        out: an existing folder.
        steps: of each way that are timed.
        layers, batch, length: of the debug Llama and of a rank's batch.
    """
    torch.set_num_threads(1)
    dist.init_process_group(bench.slow_network.NAME)
    rank = dist.get_rank()
    mesh = ls.mesh("cpu", dp=-1)
    model, tokens, train_step = data_parallel(layers, batch, length)

    ways: dict[str, Callable[..., Any]] = {
        TORCH: torch.compile(train_step),
        OURS: ls.compile(mesh=mesh, data="dp")(train_step),
        PLAIN: ls.compile(mesh=mesh, data="dp", passes=NONE)(train_step),
    }

    def run(name: str) -> float:
        model.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        ways[name](model, tokens[:, :-1], tokens[:, 1:])
        return time.perf_counter() - start

    found: dict[str, list[torch.Tensor]] = {}
    for name in ways:
        for _ in range(3):
            run(name)
        found[name] = gradients(model)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for _ in range(steps):
        for name in order:
            taken[name].append(run(name))
        order.append(order.pop(0))  # no way always follows the same other
    peaks = {}
    for name, way in ways.items():
        model.zero_grad()
        peaks[name] = peak_bytes(lambda: way(model, tokens[:, :-1], tokens[:, 1:]))  # noqa: B023
    same = all(map(torch.equal, found[OURS], found[PLAIN]))
    told = {"seconds": taken, "peaks": peaks, "same": same, "gradients": len(found[OURS])}
    (out / f"rank{rank}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
    os._exit(0)  # a group in Python outlives the interpreter's threads


if __name__ == "__main__":
    tyro.cli(main)
