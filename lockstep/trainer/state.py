"""What a checkpoint holds of a rank: its box of every parameter and of the optimizer's moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lockstep.trainer.steps import MOMENTS


@dataclass(frozen=True)
class Box:
    """The part of a whole tensor that a rank holds.

    Args:
        shape: of the whole.
        offsets, sizes: where the part begins, and how far it goes, in each dimension.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def boxes(model: nn.Module) -> dict[str, Box]:
    """Return the box of each parameter, by name."""
    return {name: _box(parameter) for name, parameter in model.named_parameters()}


def _box(parameter: torch.Tensor) -> Box:
    shape = tuple(parameter.shape)
    return Box(shape, (0,) * len(shape), shape)


def saved(
    model: nn.Module, optimizer: torch.optim.Optimizer, held: Mapping[str, Box]
) -> dict[str, torch.Tensor]:
    """Return every tensor that a checkpoint holds, as views of the real ones.

    Each says its box, in the way of torch's `CheckpointableTensor`, so that torch's distributed
    checkpoint writes each box once, and reads it on any other mesh.
    """
    found = {}
    for name, parameter in model.named_parameters():
        found[f"model.{name}"] = boxed(parameter.detach(), held[name])
        for moment in MOMENTS if parameter in optimizer.state else ():
            value = optimizer.state[parameter][moment]
            found[f"optimizer.{moment}.{name}"] = boxed(value.detach(), held[name])
    return found


def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies on the CPU, marked alike, that stay as they are while the training goes on."""
    return {
        name: boxed(value.to("cpu", copy=True), value.lockstep_box)  # type: ignore[attr-defined]
        for name, value in tensors.items()
    }


def boxed(value: torch.Tensor, box: Box) -> torch.Tensor:
    """Return a view of a tensor, marked with the box that it is."""
    marked = value.view_as(value)
    marks: dict[str, Any] = {
        "lockstep_box": box,
        "global_shape": box.shape,
        "global_offsets": (box.offsets,),
        "local_offsets": ((0,) * len(box.shape),),
        "local_sizes": (box.sizes,),
    }
    for name, mark in marks.items():
        setattr(marked, name, mark)
    return marked


def set_step(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Let the optimizer have made so many steps."""
    for state in optimizer.state.values():
        state["step"].fill_(step)
