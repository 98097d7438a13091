"""What one row of the table is about: a step on layers that come from a package as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import lockstep as ls

DP = {"dp": 2}
OWN_BATCH = ("dp", "fsdp")


@dataclass(frozen=True)
class Program:
    """One program of somebody else's layers.

    Args:
        name: of its row.
        package: the distribution that its layers come from.
        model: makes it on one rank, for that rank's mesh.
        batch: the arguments beside the model, for a mesh and the how manieth call.
        step: called as `step(model, *batch)`; returns the loss.
        mesh: axis -> ranks.
        data: axes along which batches differ.
        dynamic: as for `ls.compile`.
        noted: whether it was seen to be captured bitwise before there was a Lockstep.
    """

    name: str
    package: str
    model: Callable[[Any], torch.nn.Module]
    batch: Callable[[Any, int], tuple[Any, ...]]
    step: Callable[..., torch.Tensor]
    mesh: Mapping[str, int] = field(default_factory=lambda: dict(DP))
    data: tuple[str, ...] = ("dp",)
    dynamic: Mapping[str, Mapping[int, tuple[int, int]]] | None = None
    noted: bool = False

    @property
    def ranks(self) -> int:
        """How many ranks it runs on."""
        count = 1
        for size in self.mesh.values():
            count *= size
        return count

    def own(self, mesh: Any) -> int:
        """A number of this rank's own along its data axes; 0 without any."""
        return sum(mesh.get_local_rank(axis) for axis in self.data)


def copies(make: Callable[..., torch.nn.Module]) -> Callable[[Any], torch.nn.Module]:
    """What makes a model that every rank of `dp` holds whole; its maker knows of no mesh."""

    def model(mesh: Any) -> torch.nn.Module:
        made = make()
        ls.type_parameters(made, {"*": {"dp": ls.R}})
        return made

    return model


def draws(mesh: Any, call: int) -> torch.Generator:
    """What a rank draws a call's batch from: along axes of data each has its own."""
    own = sum(mesh.get_local_rank(name) for name in mesh.mesh_dim_names if name in OWN_BATCH)
    return torch.Generator().manual_seed(1000 * call + own)


def replicated(step_loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A data-parallel step around what gives a rank's mean loss."""

    @functools.wraps(step_loss)
    def step(model: torch.nn.Module, *batch: Any) -> torch.Tensor:
        loss = ls.loss(step_loss(model, *batch), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss

    return step
