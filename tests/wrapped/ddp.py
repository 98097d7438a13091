"""A debug Llama in a DDP: 20 steps with accumulation and clipping; and what is taken away.

As a script, `python -m tests.wrapped.ddp NAME` is one rank's part.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

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


def model(**options: bool) -> nn.Module:
    torch.manual_seed(0)
    plain = llama.Llama(llama.config("debug", layers=2))
    return DistributedDataParallel(plain, bucket_cap_mb=0.2, **options)


class Scaled(nn.Module):
    """The loss of a wrapped model, by a factor that the wrapper does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped, self.scale = model(), nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.wrapped(tokens, labels) * self.scale


def whole(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, ids: Tensor) -> Tensor:
    """Two micro-batches, of which the second reduces both; clipped."""
    optimizer.zero_grad()
    first, second = ids.unbind(0)
    with model.no_sync():
        ls.loss(model(first[:, :-1], first[:, 1:]) / 2, dp="mean").backward()
    loss = ls.loss(model(second[:, :-1], second[:, 1:]) / 2, dp="mean")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def left_on(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, ids: Tensor
) -> Tensor:
    """Nothing is ever reduced."""
    with model.no_sync():
        return whole_batch(model, optimizer, ids)


KINDS: dict[str, dict[str, bool]] = {
    "as it is": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
}
TAKEN: dict[str, tuple[Step, Make]] = {
    "no_sync left on": (left_on, model),
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
    found = [_bitwise(torchrun, folder / name, name) for name in KINDS]
    found += [refused(torchrun, "tests.wrapped.ddp", name, folder / name) for name in TAKEN]
    return [dataclasses.replace(row, name=f"DDP, {row.name}") for row in found]


def _bitwise(torchrun: Torchrun, folder: Path, name: str) -> Row:
    row, ended = bitwise(torchrun, "tests.wrapped.ddp", name, folder, "all_reduce")
    eager = len(ended.of("as_it_is", rank=0))
    said = "runs as it is until DDP has the last buckets" in ended.texts[0]
    return dataclasses.replace(row, holds=row.holds and said and eager < 3)


if __name__ == "__main__":
    main(sys.argv[1])
