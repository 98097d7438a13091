"""The step around a transformer: its loss, its backward, and what reduces gradients after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

import lockstep as ls
from tests.fault_cases.transformer import WORDS, Block, SequenceBlock, Transformer

Model = Callable[..., nn.Module]


@dataclass(frozen=True)
class Program:
    """One training program.

    Args:
        make: gets a rank's mesh and gives the step's arguments.
        mesh: axis -> ranks.
        data: the axes along which batches differ.
    """

    step: Callable[..., Any]
    make: Callable[[Any], Any]
    mesh: dict[str, int]
    data: tuple[str, ...] = ()


def batch(mesh: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's part of the words and of the ones that follow them."""
    draw = torch.Generator().manual_seed(5)
    words = torch.randint(0, WORDS, (4, 4), generator=draw)
    after = torch.randint(0, WORDS, (4, 4), generator=draw)
    parts = mesh["dp"].size(), 1
    mine = mesh.get_local_rank("dp")
    return words.chunk(*parts)[mine], after.chunk(*parts)[mine]


def tensor_parallel(model: Model = Transformer, dp: int = 1, **options: Any) -> Program:
    """Return a step that averages gradients over dp by hand."""

    def make(mesh: Any) -> Any:
        return model(mesh, **options), *batch(mesh)

    return Program(plain_step, make, {"dp": dp, "tp": 2}, ("dp",))


def plain_step(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = ls.loss(model(ids, labels), dp="mean")
    loss.backward()
    average(model)
    return loss.detach()


def average(model: Any) -> None:
    """Replace each gradient by its mean over dp."""
    group = model.mesh.get_group("dp")
    for weight in model.parameters():
        dist.all_reduce(weight.grad, group=group)
        weight.grad /= model.mesh["dp"].size()


def sequence_parallel(
    sync: Callable[[Any], None], block: type[Block] = SequenceBlock, dp: int = 1, tied: bool = False
) -> Program:
    """Return a step that sums up the norms' gradients, as each rank saw its own rows alone."""

    def step(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(ids, labels), dp="mean")
        loss.backward()
        sync(model)
        average(model)
        return loss.detach()

    def make(mesh: Any) -> Any:
        return Transformer(mesh, block=block, tied=tied), *batch(mesh)

    return Program(step, make, {"dp": dp, "tp": 2}, ("dp",))


def sync_all(model: Any) -> None:
    for weight in model.parameters():
        if getattr(weight, "sequence_parallel", False):
            dist.all_reduce(weight.grad, group=model.group)


def sync_all_but_norm2(model: Any) -> None:
    for name, weight in model.named_parameters():
        if getattr(weight, "sequence_parallel", False) and not name.endswith("norm2"):
            dist.all_reduce(weight.grad, group=model.group)


def sync_none(model: Any) -> None:
    """Wrong: nobody adds up what the ranks' rows gave."""


def scaled_and_averaged(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Wrong: divides by the ranks twice."""
    loss = ls.loss(model(ids, labels), dp="mean")
    scaled = loss / model.mesh["dp"].size()
    scaled.backward()
    average(model)
    return loss.detach()


def summed_not_averaged(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Wrong: the loss is a mean over dp, and its gradients are summed."""
    loss = ls.loss(model(ids, labels), dp="mean")
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad, group=model.mesh.get_group("dp"))
    return loss.detach()


def reduced_loss(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss is all-reduced, and so is its gradient: right, as gradients are then averaged."""
    loss = model(ids, labels)
    total = functional.all_reduce(loss, "sum", model.mesh.get_group("dp"))
    loss = total / model.mesh["dp"].size()
    loss.backward()
    average(model)
    return loss.detach()


def reduced_loss_summed(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Wrong: both the loss' backward and what follows it add up."""
    loss = model(ids, labels)
    total = functional.all_reduce(loss, "sum", model.mesh.get_group("dp"))  # of the losses
    loss = total / model.mesh["dp"].size()
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad, group=model.mesh.get_group("dp"))
    return loss.detach()


def data_parallel(step: Callable[..., Any]) -> Program:
    """Return a program of two data-parallel ranks with a step of its own."""
    return Program(step, tensor_parallel().make, {"dp": 2, "tp": 2}, ("dp",))
