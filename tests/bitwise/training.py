"""The runs whose numbers are compared: a small Llama, its steps, and a loop that records all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from lockstep.models import llama
from tests.bitwise.compare import History, Record

# Four layers, grouped heads, tied weights and dropout; narrow, so that two cores do it in time.
CONFIG = llama.Config(
    dim=32, layers=4, heads=4, kv_heads=2, ffn=64, vocab=64, tied=True, dropout=0.1, init_std=0.05
)
BATCH, LENGTH, RATE = 2, 16, 3e-3
Step = Callable[..., Any]


def loss_step(model: llama.Llama, tokens: Tensor, labels: Tensor) -> Tensor:
    """Forward, backward and reduction; the optimizer is the caller's."""
    loss = ls.loss(model(tokens, labels), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def whole_step(model: llama.Llama, optimizer: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    """The same with the optimizer inside."""
    loss = ls.loss(model(tokens, labels), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    optimizer.step()
    return loss


def micro_step(model: llama.Llama, tokens: Tensor, labels: Tensor, last: bool) -> Tensor:
    """One of four whose gradients add up; only the last one reduces them."""
    loss = ls.loss(model(tokens, labels) / 4, dp="mean")
    loss.backward()
    if last:
        ls.reduce_grads(model, dp="mean")
    return loss


def eval_step(model: llama.Llama, tokens: Tensor, labels: Tensor) -> Tensor:
    """Forward and loss alone."""
    with torch.no_grad():
        return model(tokens, labels)


def infer_step(model: llama.Llama, tokens: Tensor) -> Tensor:
    """Logits."""
    return model(tokens)


@dataclass
class Run:
    """One training from the start: model, optimizer, schedule, and the rank's batches.

    Args:
        seed: of the weights, and with the rank of the dropout.
        order: in which order the rank meets its batches.
        steps: how many optimizer steps there will be.
    """

    seed: int = 0
    order: int = 0
    steps: int = 20

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.model = llama.Llama(CONFIG)
        parameters = self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)
        schedules = torch.optim.lr_scheduler
        self.schedule = schedules.OneCycleLR(self.optimizer, RATE, total_steps=self.steps + 1)
        self.history: History = []
        torch.manual_seed(1000 * (self.seed + 1) + dist.get_rank())  # each rank drops its own

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's tokens and labels, in this run's order, over and over."""
        data = _text()[dist.get_rank()]
        shuffled = torch.randperm(len(data), generator=torch.Generator().manual_seed(self.order))
        while True:
            for index in shuffled.tolist():
                yield data[index, :, :-1], data[index, :, 1:]

    def record(self, **values: Tensor) -> None:
        """Keep the gradients as they are now, and the given values."""
        record: Record = {name: value.detach().clone() for name, value in values.items()}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                record[f"grad {name}"] = parameter.grad.clone()
        self.history.append(record)

    def advance(self, step_optimizer: bool = True) -> None:
        """Let optimizer and schedule act, add the parameters to the record, clear the gradients."""
        if step_optimizer:
            self.optimizer.step()
        self.schedule.step()
        for name, parameter in self.model.named_parameters():
            self.history[-1][f"param {name}"] = parameter.detach().clone()
        self.optimizer.zero_grad()


def train(step: Step, inside: bool, order: int, steps: int = 20, seed: int = 0) -> History:
    """Train with a step that holds the optimizer (`inside`) or leaves it to this loop."""
    run = Run(seed, order, steps)
    for _, (tokens, labels) in zip(range(steps), run.batches(), strict=False):
        held = (run.optimizer,) if inside else ()
        run.record(loss=step(run.model, *held, tokens, labels))
        run.advance(step_optimizer=not inside)
    return run.history


@functools.cache
def _text() -> Tensor:
    """A stream with some structure, so that there is something to learn: [ranks, 20, B, T + 1]."""
    draw = torch.Generator().manual_seed(11)
    shape = (dist.get_world_size(), 20, BATCH, LENGTH + 1)
    return (torch.randint(4, shape, generator=draw).cumsum(-1) * 3) % CONFIG.vocab
