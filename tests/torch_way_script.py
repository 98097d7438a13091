"""A training script for LOCKSTEP=off|torch|torch-one-rank; prints the losses and what was told."""

import json
import sys

import torch
from torch import Tensor, nn

import lockstep as ls

mesh = ls.mesh(dp=-1)


@ls.compile(mesh=mesh, data="dp")
def train_step(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = ls.loss((model(x) - y).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


@ls.compile(mesh=mesh)
def refused(x: Tensor) -> Tensor:
    return torch.compiler.nested_compile_region(torch.cond)(x.sum() > 0, wrong, torch.neg, (x,))


def wrong(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x


torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(5):
    x = torch.randn(8, 4)
    losses.append(train_step(model, x, x * 2).item())
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps({"losses": losses, "flag": torch.compiler.config.compile_on_one_rank}))
if "refused" in sys.argv:
    refused(torch.ones(3))
