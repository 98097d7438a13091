"""torchtitan's Llama 3, data-parallel as a plain model, and under the package's own plans."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchtitan.components.loss import _LossParallelCrossEntropy
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import get_spmd_context
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import Llama3Model, llama3_configs
from torchtitan.models.llama3.sharding import set_llama3_sharding_config

import lockstep as ls
from clients.program import Program, copies, draws, replicated
from clients.shims import torchtitan as shim

VOCAB, BATCH, TOKENS = 2048, 2, 16


def configured(sequence: bool | None = None) -> Llama3Model.Config:
    """The package's smallest one, of a single layer; told how to divide it, where that is asked."""
    told = llama3_configs["debugmodel"](attn_backend="flex")
    told.layers = told.layers[:1]
    told.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()  # flex has no CPU
    if sequence is not None:
        set_llama3_sharding_config(told, enable_sp=sequence)
    return told


def built(told: Llama3Model.Config) -> Llama3Model:
    """The model with its own initial weights."""
    model = told.build()
    model.init_states(buffer_device=torch.device("cpu"))
    return model


def plain() -> nn.Module:
    """The model as it is."""
    return built(configured())


def simple(mesh: Any) -> nn.Module:
    """The model under SimpleFSDP, its parameters sharded as DTensors."""
    return data_parallel(plain(), mesh, mode="fully_shard")


def divided(backend: str) -> Any:
    """What makes the model under its tensor-parallel plan, of DTensors or of local tensors."""

    def make(mesh: Any) -> nn.Module:
        shim.start()
        model = built(configured(sequence=True))
        sizes = dict(dp_replicate=1, dp_shard=1, cp=1, tp=mesh.size(), pp=1, ep=1)
        dims = ParallelDims(**sizes, world_size=mesh.size(), spmd_backend=backend)
        dims.build_mesh()
        model.parallelize(dims)
        model.group, model.around = mesh.get_group("tp"), get_spmd_context(parallel_dims=dims)
        ls.type_parameters(model, {"*norm.weight": {"tp": ls.R}})  # as the plan's own comment says
        return model

    return make


def tokens(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """A rank's rows of tokens, and what comes after each."""
    ids = torch.randint(VOCAB, (BATCH, TOKENS + 1), generator=draws(mesh, call))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of the next token."""
    places = torch.arange(TOKENS, device=ids.device).expand(BATCH, -1)
    logits = model(ids, positions=places)
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def own_step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """A step under a plan that adds gradients up by itself: each loss is a share of a sum."""
    loss = ls.loss(loss_of(model, ids, labels) / dist.get_world_size(), dp="sum")
    loss.backward()
    return loss


def whole_step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """A step of DTensors, whose logits are divided by vocabulary; on one rank nothing is."""
    logits = model(ids, positions=torch.arange(TOKENS).expand(BATCH, -1))
    logits = logits.full_tensor() if isinstance(logits, DTensor) else logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    loss.backward()
    return loss


def vocabulary_step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """A step of local tensors, by the package's own loss of logits that are divided so."""
    places = torch.arange(TOKENS, device=ids.device).expand(BATCH, -1)
    with model.around():  # else the package's layers leave their redistributions out
        logits = model(ids, positions=places).flatten(0, 1).float()
        loss = _LossParallelCrossEntropy.apply(logits, labels.flatten(), model.group, VOCAB)
        loss = loss / labels.numel()
        loss.backward()
    for part in model.modules():  # what the package leaves to its FSDP: their tokens are divided
        if isinstance(part, nn.RMSNorm):
            ls.reduce_grads(part, tp="sum")
    return loss


def titan(name: str, model: Any, step: Any, **more: Any) -> Program:
    """A program of this package."""
    return Program(f"torchtitan Llama 3, {name}", "torchtitan", model, tokens, step, **more)


TP: dict[str, Any] = dict(mesh={"tp": 2}, data=())
PROGRAMS = [
    titan("data-parallel", copies(plain), replicated(loss_of)),
    titan("its SimpleFSDP", simple, own_step, noted=True),
    titan("its DTensor plan", divided("partial_dtensor"), whole_step, **TP, noted=True),
    titan("its local plan", divided("spmd_types"), vocabulary_step, **TP),
]
