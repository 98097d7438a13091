"""`--check`: the config's steps on a model so small that all ranks are simulated in a moment."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from lockstep.checker.check import check
from lockstep.checker.finding import Report
from lockstep.models import llama_plan
from lockstep.trainer.config import TrainConfig
from lockstep.trainer.model import make_model
from lockstep.trainer.steps import make_optimizer, make_steps


def shrunk(config: TrainConfig, sizes: dict[str, int]) -> tuple[TrainConfig, dict[str, int]]:
    """Return a config that does the same on small tensors, and its mesh: two ranks an axis.

    Heads stay grouped where they are, weights tied, dropout on, and micro-batches several. Stages
    of a pipeline are one: no rank is simulated that runs another program.
    """
    small = {axis: min(size, 2) for axis, size in sizes.items() if axis != "pp"} or {"dp": 1}
    tp, cp = small.get("tp", 1), small.get("cp", 1)
    ranks = small.get("dp", 1) * small.get("fsdp", 1)
    model, parts = config.model, min(config.data.micro_batches, 2)
    heads = 2 * tp if model.heads > model.kv_heads else tp
    model = dataclasses.replace(
        model,
        dim=8 * heads,
        layers=min(model.layers, 2),
        heads=heads,
        kv_heads=tp,
        ffn=16 * heads,
        vocab=32,
    )
    data = dataclasses.replace(
        config.data, batch=ranks * parts, micro_batches=parts, sequence=4 * tp * cp
    )
    mesh = dataclasses.replace(config.mesh, pp=1, chunks=1)
    return dataclasses.replace(config, model=model, data=data, mesh=mesh), small


def check_twin(config: TrainConfig, sizes: dict[str, int], repair_s: float = 10.0) -> Report:
    """Check the training step of a config on its shrunken twin, in this process.

    Args:
        config: validated.
        sizes: of the mesh's axes, in full.
        repair_s: seconds in which repairs of a finding may be tried out.
    """
    config, small = shrunk(config, sizes)
    data_axes = tuple(axis for axis in small if axis in llama_plan.DATA)

    def make(mesh: Any) -> Any:
        model = make_model(config, mesh, torch.device("cpu"))
        place, ranks = 0, 1
        for axis in data_axes:
            place = place * small[axis] + mesh.get_local_rank(axis)
            ranks *= mesh[axis].size()
        data = config.data
        drawn = torch.Generator().manual_seed(config.seed)
        shape = (data.batch, data.sequence + 1)
        tokens = torch.randint(config.model.vocab, shape, generator=drawn)
        return model, make_optimizer(config, model), tokens.chunk(ranks)[place].clone()

    report = check(make_steps(config).train, make, mesh=small, data=data_axes, repair_s=repair_s)
    if "pp" in sizes:
        report.established.append("stages: nothing; all layers were checked as one stage")
    return report
