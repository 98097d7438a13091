"""A debug Llama in FSDP2: 20 steps with accumulation and clipping; and what is taken away.

As a script, `python -m tests.wrapped.fsdp2 NAME` is one rank's part.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import lockstep as ls
from lockstep.models import llama
from tests.ranks.launch import Here, Torchrun
from tests.wrapped.row import Row
from tests.wrapped.training import (
    Make,
    Step,
    bitwise,
    both_ways,
    compiled,
    refused,
    trained,
    whole_batch,
)

# ---- one rank ------------------------------------------------------------------------------------


def model(**options: Any) -> nn.Module:
    """Each block is gathered for itself, and the rest with the root.

    Each parameter has a gradient before the first step, as after any other: else that would be
    another program than the rest.
    """
    torch.manual_seed(0)
    plain = llama.Llama(llama.config("debug", layers=2))
    mesh = ls.mesh("cpu", dp=-1)
    for block in plain.layers:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(plain, mesh=mesh, **options)
    for parameter in plain.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return plain


class Scaled(nn.Module):
    """The loss of a wrapped model, by a factor that the wrapper does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped, self.scale = model(), nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.wrapped(tokens, labels) * self.scale


def whole(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Two micro-batches, of which the second reduces both; clipped."""
    optimizer.zero_grad()
    first, second = ids.unbind(0)
    model.set_requires_gradient_sync(False)
    ls.loss(model(first[:, :-1], first[:, 1:]) / 2, dp="mean").backward()
    model.set_requires_gradient_sync(True)
    loss = ls.loss(model(second[:, :-1], second[:, 1:]) / 2, dp="mean")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def left_on(model: Any, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Nothing is ever reduced."""
    model.set_requires_gradient_sync(False)
    return whole_batch(model, optimizer, ids)


KINDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "reshard_after_forward=False": {"reshard_after_forward": False},
    "bfloat16, reduced in float32": {
        "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    },
}
TAKEN: dict[str, tuple[Step, Make]] = {
    "set_requires_gradient_sync(False) left on": (left_on, model),
    "a parameter outside": (whole_batch, Scaled),
}


def main(name: str) -> None:
    """One rank's part of a case."""
    ls.mesh("cpu", dp=-1)
    if name in TAKEN:
        Here()
        step, make = TAKEN[name]
        trained(compiled(step), make(), 3)
    else:
        both_ways(whole, lambda: model(**KINDS[name]))


# ---- all of them ---------------------------------------------------------------------------------


def rows(torchrun: Torchrun, folder: Path) -> list[Row]:
    """A row for each kind and for each reduction that is taken away."""
    module, op = "tests.wrapped.fsdp2", "reduce_scatter_tensor"
    found = [bitwise(torchrun, module, name, folder / name, op)[0] for name in KINDS]
    found += [refused(torchrun, module, name, folder / name) for name in TAKEN]
    return [dataclasses.replace(row, name=f"FSDP2, {row.name}") for row in found]


if __name__ == "__main__":
    main(sys.argv[1])
