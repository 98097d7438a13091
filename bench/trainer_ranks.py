"""One rank of trainer.py's job: the trainer's step in several ways, in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tyro
from torch import Tensor, nn

import lockstep as ls
from bench.step import peak_bytes
from bench.trainer import COMPILED, EAGER, OURS, PEER
from lockstep import parallel
from lockstep.models import llama, llama_plan
from lockstep.trainer.config import Data, Optimizer, Schedule, TrainConfig
from lockstep.trainer.steps import make_optimizer, make_steps

CLIP = 1.0


def config_of(layers: int, batch: int, length: int) -> TrainConfig:
    """What the trainer would be given; a batch is of all ranks."""
    return TrainConfig(
        folder="",
        model=llama.config("debug", layers=layers),
        data=Data(paths=(), batch=batch, sequence=length),
        optimizer=Optimizer(lr=1e-3, clip=CLIP),
        schedule=Schedule(steps=1),
    )


def ways(layout: str, config: TrainConfig, tokens: Tensor) -> dict[str, Callable[[], Any]]:
    """Each way's step on a model and an optimizer of its own."""
    mesh = ls.mesh(**{layout: -1})
    train = make_steps(config).train

    def own(step: Callable[..., Any]) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = llama_plan.parallelize(llama.Llama(config.model), mesh)
        model.to(tokens.device)
        optimizer = make_optimizer(config, model)
        return lambda: step(model, optimizer, tokens)

    data = parallel.layout(llama_plan.parallelize(llama.Llama(config.model), mesh)).data
    return {
        EAGER: own(train),
        COMPILED: own(torch.compile(train)),
        OURS: own(ls.compile(mesh=mesh, data=data)(train)),
        PEER[layout]: peer(layout, config, tokens),
    }


def peer(layout: str, config: TrainConfig, tokens: Tensor) -> Callable[[], Any]:
    """The same training by torch's own wrapper: DDP, or FSDP2."""
    torch.manual_seed(0)
    model: nn.Module = llama.Llama(config.model).to(tokens.device)
    if layout == "dp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for block in model.layers:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step() -> Tensor:
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def seconds(step: Callable[[], Any], steps: int) -> float:
    """Seconds of some steps, from when all ranks begin until this rank's last value is there."""
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        made = step()
    (made[0] if isinstance(made, tuple) else made).item()
    return time.perf_counter() - begin


def main(
    layout: str, out: Path, runs: int, steps: int, layers: int, batch: int, length: int
) -> None:
    """Run all ways in turn and write what was seen.

    Args:
        layout: "dp" or "fsdp".
        out: a folder for each rank's file.
        runs: of each way, `steps` steps in each.
        layers, batch, length: of the debug Llama, a step of all ranks, and a sequence.
    """
    torch.set_num_threads(1)
    ls.mesh(**{layout: -1})
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(1 + rank)
    tokens = torch.randint(256, (batch // size, length + 1), generator=draw)
    made = ways(layout, config_of(layers, batch, length), tokens)
    for step in made.values():
        seconds(step, 3)  # compile, and some steps more
    taken: dict[str, list[float]] = {name: [] for name in made}
    order = list(made)
    for _ in range(runs):
        for name in order:
            taken[name].append(seconds(made[name], steps))
        order.append(order.pop(0))  # no way always follows the same other
    peaks = {}
    for name, step in made.items():
        dist.barrier()
        peaks[name] = peak_bytes(step)
    (out / f"rank{rank}.json").write_text(json.dumps({"seconds": taken, "peaks": peaks}))
    dist.destroy_process_group()


if __name__ == "__main__":
    tyro.cli(main)
