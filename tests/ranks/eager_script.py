"""For `lockstep check --eager`: `eager_script.py [hidden]`, whose reductions no capture may see."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import lockstep as ls
from tests.ranks.eager_check import reducing_below

mesh = ls.mesh("cpu", dp=-1)


@ls.compile(mesh=mesh, data="dp", pending={"dp": "ddp mean"})
def train_step(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
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
    hooked = reducing_below(model) if sys.argv[1:] else []
    torch.manual_seed(1 + mesh.get_local_rank("dp"))
    x = torch.randn(3, 4)
    for _ in range(2):
        train_step(model, x)
        evaluate(model, x)
