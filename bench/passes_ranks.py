"""One rank of a step with each pass and without, on a slow network. Started by passes.py.

The ways take turns, each on the network as it is and slowed down, and the ranks meet before each.
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

import bench.slow_network as slow
import lockstep as ls
from bench.passes import FAST, SLOW, UPDATES, WAYS
from bench.rank_job import data_parallel
from bench.step import peak_bytes


def differing(count: int = 9) -> int:
    """How many numbers differ where tensors are summed side by side and each on its own."""
    parts = [torch.randn(1 + 37 * at) for at in range(count)]
    joined = torch.cat(parts)
    for part in parts:
        dist.all_reduce(part)
    dist.all_reduce(joined)
    return int((torch.cat(parts) != joined).sum())


def measured(
    steps: int, layers: int, batch: int, length: int, delay_ms: float, gbit_s: float, backend: str
) -> dict[str, Any]:
    """Of each way its steps' seconds and those slept for the network, its peak, and whether its
    gradients have the same bits."""
    mesh = ls.mesh("cpu", dp=-1)
    model, tokens, train_step = data_parallel(layers, batch, length)

    ways: dict[str, Callable[..., Any]] = {
        name: ls.compile(mesh=mesh, data="dp", backend=backend, passes=passes)(train_step)
        for name, passes in WAYS.items()
    }

    def step(name: str) -> None:
        ways[name](model, tokens[:, :-1], tokens[:, 1:])

    def run(name: str) -> tuple[float, float]:
        model.zero_grad()
        dist.barrier()
        slow.Network.slept_s, start = 0.0, time.perf_counter()
        step(name)
        return time.perf_counter() - start, slow.Network.slept_s

    def peak(name: str) -> int:
        model.zero_grad()
        return peak_bytes(lambda: step(name))

    found: dict[str, list[torch.Tensor]] = {}
    for name in ways:
        run(name)
        run(name)
        found[name] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    networks = {FAST: (0.0, 0.0), SLOW: (delay_ms / 1e3, gbit_s)}
    turns = [(network, name) for network in networks for name in ways]
    taken: dict[str, Any] = {at: {name: [] for name in ways} for at in networks}
    for _ in range(steps):
        for network, name in turns:
            slow.Network.delay_s, slow.Network.gbit_s = networks[network]
            taken[network][name].append(run(name))
        turns.append(turns.pop(0))  # no way always follows the same other
    slow.Network.delay_s, slow.Network.gbit_s = networks[FAST]
    first = next(iter(found.values()))
    return {
        "seconds": taken,
        "peaks": {name: peak(name) for name in ways},
        "same": {name: all(map(torch.equal, first, found[name])) for name in ways},
        "bytes": sum(gradient.nbytes for gradient in first),
    }


def updated(steps: int, layers: int) -> dict[str, Any]:
    """Of AdamW's update by each way: seconds, its peak, and whether parameters have equal bits."""
    mesh = ls.mesh("cpu", dp=-1)
    ways: dict[str, tuple[Callable[..., Any], Any, Any]] = {}
    for name, passes in UPDATES.items():
        torch.manual_seed(0)
        model, _, _ = data_parallel(layers, 1, 2)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        ways[name] = ls.compile(mesh=mesh, data="dp", passes=passes)(update), model, optimizer
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps + 2):
        for name, (step, model, optimizer) in ways.items():
            dist.barrier()
            start = time.perf_counter()
            step(model, optimizer)
            taken[name].append(time.perf_counter() - start)
    first, other = (list(model.parameters()) for _, model, _ in ways.values())
    peaks = {name: peak_bytes(lambda way=way: way[0](*way[1:])) for name, way in ways.items()}
    return {
        "update seconds": {name: values[2:] for name, values in taken.items()},  # two were warm-up
        "update peaks": peaks,
        "update same": all(map(torch.equal, first, other)),
    }


def update(model: Any, optimizer: Any) -> None:
    """What an optimizer does with the gradients that are there."""
    optimizer.step()


def main(
    out: Path,
    bits: bool = False,
    steps: int = 20,
    layers: int = 4,
    batch: int = 8,
    length: int = 256,
    delay_ms: float = 1.0,
    gbit_s: float = 1.0,
    backend: str = "inductor",
) -> None:
    """Measure and write `rank<N>.json`.

    Args:
        out: an existing folder.
        bits: only count the numbers that differ between sums side by side and each on its own.
        steps: of each way on each network.
        layers, batch, length: of the debug Llama and of a rank's batch.
        delay_ms, gbit_s: of the slow network.
        backend: of `ls.compile`.
    """
    torch.set_num_threads(1)
    dist.init_process_group(slow.NAME)
    rank = dist.get_rank()
    torch.manual_seed(rank)
    told: dict[str, Any] = {"differing": differing()}
    if not bits:
        told |= measured(steps, layers, batch, length, delay_ms, gbit_s, backend)
        told |= updated(steps, layers)
    (out / f"rank{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a group in Python outlives the interpreter's threads


if __name__ == "__main__":
    tyro.cli(main)
