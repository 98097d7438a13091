"""A training script for `lockstep build`, and for real ranks; it tells what it computed.

python -m tests.ranks.ahead_script HOW [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls

mesh = ls.mesh(dp=-1)


class Net(nn.Module):
    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.offset  # the offset


@ls.compile(mesh=mesh, data="dp", backend="graph")
def train_step(model: Net, x: Tensor) -> Tensor:
    loss = ls.loss(model(x).pow(2).mean(), dp="mean")
    loss.backward()
    if "unreduced" not in sys.argv:
        ls.reduce_grads(model, dp="mean")
    return loss


@ls.compile(mesh=mesh, data="dp", backend="graph")
@torch.no_grad()
def eval_step(model: Net, x: Tensor) -> Tensor:
    return model(x).pow(2).mean()


@ls.compile(mesh=mesh, data="dp", backend="graph")
def other_step(x: Tensor) -> Tensor:
    return x + 1


MASK = torch.ones(4)


def masked(x: Tensor) -> Tensor:
    return x * MASK


@ls.compile(mesh=mesh, data="dp", backend="graph")
def closing_step(x: Tensor) -> Tensor:
    return masked(x) + 1


def main(how: str, file: str = "") -> None:
    rank = dist.get_rank()
    dist.monitored_barrier(dist.new_group(backend="gloo"))
    if how == "closes":
        closing_step(torch.randn(4))
    torch.manual_seed(0)
    offset = {"formula": 3 * rank, "square": rank * rank}.get(how, 0)
    model = Net(offset).to(mesh.device_type)
    if how == "reads":
        print(int(model.inner[0].weight.sum()))
    if how == "truly":
        assert not torch.isnan(model.inner[0].weight.sum())
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank)
    if how == "absent" and rank:
        return
    for _ in range(3):
        loss = train_step(model, torch.randn(2, 4))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss:.4f}", loss.item())
    if how == "fails":
        raise ValueError("no validation set")
    if file:
        Path(file).write_text("epoch 1")
        torch.save(model.state_dict(), file)
    print("eval", eval_step(model, torch.randn(3, 4)).item())


main(*sys.argv[1:3])
dist.destroy_process_group()
