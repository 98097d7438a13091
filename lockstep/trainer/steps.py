"""The compiled steps of a training: one trains, with the optimizer inside; one evaluates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep import parallel
from lockstep.parallel.loss import job_loss
from lockstep.trainer.config import TrainConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Steps:
    """What a training calls, before it is compiled.

    Args:
        train: (model, optimizer, tokens i64[rows, sequence + 1]) -> loss and norm of all gradients,
            the same on every rank.
        evaluate: (model, tokens) -> loss.
    """

    train: Callable[[nn.Module, torch.optim.Optimizer, Tensor], tuple[Tensor, Tensor]]
    evaluate: Callable[[nn.Module, Tensor], Tensor]


def make_steps(config: TrainConfig) -> Steps:
    """Return the steps of a config, for a model that a plan has made parallel."""
    # No step reads the config itself: what it does not depend on would make it another program.
    parts, clip = config.data.micro_batches, config.optimizer.clip or float("inf")
    run = parallel.pipeline_step if config.mesh.pp > 1 else parallel.forward_backward

    def train_step(
        model: nn.Module, optimizer: torch.optim.Optimizer, tokens_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        loss = run(model, tokens_BT[:, :-1], tokens_BT[:, 1:], micro_batches=parts)  # type: ignore[arg-type]
        parallel.reduce_grads(model)
        norm = parallel.clip_grad_norm(model, clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    def eval_step(model: nn.Module, tokens_BT: Tensor) -> Tensor:
        how = parallel.layout(model)
        tokens, labels = how.own_tokens(tokens_BT[:, :-1]), how.own_tokens(tokens_BT[:, 1:])
        with torch.no_grad():
            count = parallel.token_count(labels, *how.tokens)
            told = torch.zeros((), device=tokens.device)
            for part, wanted in zip(tokens.chunk(parts), labels.chunk(parts), strict=True):
                losses = how.losses(model(part), wanted)
                told = told + parallel.token_mean(losses, wanted, *how.tokens, count=count)
            return job_loss(told, *how.tokens)

    def eval_stage_step(model: nn.Module, tokens_BT: Tensor) -> Tensor:
        tokens, labels = tokens_BT[:, :-1], tokens_BT[:, 1:]
        return parallel.pipeline_loss(model, tokens, labels, micro_batches=parts)  # type: ignore[arg-type]

    evaluate = eval_stage_step if config.mesh.pp > 1 else eval_step
    for step, name in ((train_step, "train_step"), (evaluate, "eval_step")):
        step.__qualname__ = step.__name__ = name  # what journals and messages call it
    return Steps(train_step, evaluate)


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
