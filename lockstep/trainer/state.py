"""What a checkpoint holds of a rank: its box of every parameter and of the optimizer's moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lockstep.parallel import Placed, placements
from lockstep.parallel.tied import copied_from
from lockstep.trainer.steps import MOMENTS


def saved(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return every tensor that a checkpoint holds, as views of the real ones.

    Each says its box, in the way of torch's `CheckpointableTensor`, so that torch's distributed
    checkpoint writes each box once, and reads it on any other mesh.
    """
    found, held = {}, placements(model)
    for here, parameter in model.named_parameters():
        name = copied_from(parameter) or here  # as the whole model calls it
        found[f"model.{name}"] = boxed(parameter.detach(), held[here])
        for moment in MOMENTS if parameter in optimizer.state else ():
            value = optimizer.state[parameter][moment]
            found[f"optimizer.{moment}.{name}"] = boxed(value.detach(), held[here])
    return found


def copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies on the CPU, marked alike, that stay as they are while the training goes on."""
    return {
        name: boxed(value.to("cpu", copy=True), value.lockstep_placed)  # type: ignore[attr-defined]
        for name, value in tensors.items()
    }


def boxed(value: torch.Tensor, box: Placed) -> torch.Tensor:
    """Return a view of a tensor, marked with the box that it is."""
    marked = value.view_as(value)
    marks: dict[str, Any] = {
        "lockstep_placed": box,
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
