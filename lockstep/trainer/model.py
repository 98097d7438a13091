"""The model of a config, laid out over its mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lockstep.models import llama, llama_plan, llama_stages
from lockstep.trainer.config import TrainConfig

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def plan_of(config: TrainConfig) -> llama_plan.Plan:
    """Return what a config says of its model's layout beside the mesh."""
    mesh, narrow = config.mesh, config.optimizer.precision == "bf16"
    return llama_plan.Plan(
        sequence=mesh.sequence_parallel == "yes",
        regather=mesh.regather == "yes",
        recompute=mesh.recompute == "yes",
        dtype=torch.bfloat16 if narrow else None,
    )


def make_model(config: TrainConfig, mesh: DeviceMesh, device: torch.device) -> nn.Module:
    """Return this rank's part of the model, its weights drawn by the config's seed.

    Every rank draws the whole model, so that it is the same on any mesh.
    """
    torch.manual_seed(config.seed)
    model: nn.Module
    whole, plan = llama.Llama(config.model), plan_of(config)
    if "pp" in (mesh.mesh_dim_names or ()):
        model = llama_stages.cut(whole, mesh, plan, chunks=config.mesh.chunks)
    else:
        model = llama_plan.parallelize(whole, mesh, plan)
    return model.to(device)
