"""For `lockstep check --eager`: `eager_script.py [ddp]`, whose step may hide a wrapped model."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lockstep as ls

mesh = ls.mesh("cpu", dp=-1)


class Hidden:
    """What no capture looks into."""

    __slots__ = ("wrapped",)


hidden = Hidden()


@ls.compile(mesh=mesh, data="dp", pending={"dp": "ddp mean"})
def train_step(model: nn.Module, x: Tensor) -> Tensor:
    loss = (hidden.wrapped(x) if sys.argv[1:] else model(x)).square().mean()
    loss.backward()
    return loss


@ls.compile(mesh=mesh)
def evaluate(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return ls.all_reduce(model(x).sum(), "dp", src=ls.P, dst=ls.R)


@ls.compile(mesh=mesh)
def never(x: Tensor) -> Tensor:
    return x


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    hidden.wrapped = DistributedDataParallel(model)
    torch.manual_seed(1 + mesh.get_local_rank("dp"))
    x = torch.randn(3, 4)
    for _ in range(2):  # until its buckets are made, which no capture gets through
        hidden.wrapped(x).sum().backward()
    model.zero_grad()
    for _ in range(2):
        train_step(model, x)
        evaluate(model, x)
