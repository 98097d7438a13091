"""The compiled steps of a training: one trains, with the optimizer inside; one evaluates."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lockstep.spmd.typed_collectives as collectives
from lockstep.spmd.claims import typed
from lockstep.spmd.reduce import loss as claimed
from lockstep.spmd.reduce import reduce_grads
from lockstep.spmd.types import I, P
from lockstep.trainer.config import TrainConfig


@dataclass(frozen=True)
class Steps:
    """What a training calls, before it is compiled.

    Args:
        train: (model, optimizer, tokens i64[rows, sequence + 1]) -> loss and norm of all gradients,
            the same on every rank.
        evaluate: (model, tokens) -> loss.
        data: the axes over which batches differ.
    """

    train: Callable[[nn.Module, torch.optim.Optimizer, Tensor], tuple[Tensor, Tensor]]
    evaluate: Callable[[nn.Module, Tensor], Tensor]
    data: tuple[str, ...]


def make_steps(config: TrainConfig, sizes: dict[str, int], device_type: str) -> Steps:
    """Return the steps of a config.

    Args:
        sizes: of the mesh's axes.
        device_type: "cpu", or an accelerator's.
    """
    data = tuple(axis for axis in sizes if axis in ("dp", "fsdp"))
    parts, clip = config.data.micro_batches, config.optimizer.clip or float("inf")
    ways, narrow = dict.fromkeys(data, "mean"), config.optimizer.precision == "bf16"

    # No step reads the config itself: what it does not depend on would make it another program.
    def precision() -> AbstractContextManager[Any]:
        if not narrow:
            return nullcontext()
        return torch.autocast(device_type, torch.bfloat16, cache_enabled=False)

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        with precision():
            return claimed(model(tokens[:, :-1], tokens[:, 1:]) / parts, **ways)

    def train_step(
        model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), device=tokens.device)
        for part in tokens.chunk(parts):
            loss = loss_of(model, part)
            loss.backward()
            total = total + loss.detach()
        reduce_grads(model, **ways)
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        return mean(total, data), norm

    def eval_step(model: nn.Module, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            losses = [loss_of(model, part) for part in tokens.chunk(parts)]
            return mean(torch.stack(losses).sum(), data)

    return Steps(train_step, eval_step, data)


def mean(value: Tensor, axes: tuple[str, ...]) -> Tensor:
    """Return the mean of the ranks' values over data axes."""
    value = typed(value, **dict.fromkeys(axes, P("mean")))
    for axis in axes:
        value = collectives.all_reduce(value, axis, src=P("mean"), dst=I)
    return value


def make_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW with state of zeros, which is what its first step starts from."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    told = config.optimizer
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": told.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    betas = (told.beta1, told.beta2)
    optimizer = torch.optim.AdamW(groups, lr=told.lr, betas=betas, eps=told.eps, foreach=False)
    for parameter in parameters:
        zeros = {name: torch.zeros_like(parameter) for name in MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
    return optimizer


MOMENTS = ("exp_avg", "exp_avg_sq")
