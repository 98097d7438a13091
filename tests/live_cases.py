"""A tensor-parallel block in ways that no capture can hold, right and wrong; see test_live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep import I, P, R, S


class Block(nn.Module):
    """Two linear layers, of which each rank holds its shards; None: on one rank."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        torch.manual_seed(5)
        size, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
        self.gain = nn.Parameter(torch.randn(4))
        self.up = nn.Parameter(torch.randn(8, 4).chunk(size)[rank].clone())
        self.down = nn.Parameter(torch.randn(4, 8).chunk(size, 1)[rank].clone())
        for weight, kind in ((self.gain, I), (self.up, S(0)), (self.down, S(1))):
            ls.typed(weight, tp=kind)


def make_block(mesh: Any) -> tuple[Block, torch.Tensor]:
    """The block and a batch, the same on every rank."""
    model = Block(mesh)
    return model, torch.randn(3, 4, generator=torch.Generator().manual_seed(6))


def block(how: str, fault: str = "") -> Callable[[Block, torch.Tensor], torch.Tensor]:
    """A training step.

    Args:
        how: what of it no capture holds; "" is a step that is captured.
        fault: what it does wrong.
    """

    def step(model: Block, x: torch.Tensor) -> torch.Tensor:
        x = x * model.gain
        if fault != "no convert":
            x = ls.convert(x, "tp", src=I, dst=R)
        y = torch.relu(x @ model.up.t()) @ model.down.t()
        if fault != "no reduce":
            y = ls.all_reduce(y, "tp", src=P, dst=I)
        if fault == "half":
            y = y / 2
        loss = _decided(how, fault, y)
        loss.backward()
        if how == "clip":
            _clip(model, fault)
        return loss

    return step


def _decided(how: str, fault: str, y: torch.Tensor) -> torch.Tensor:
    if how == "loop":
        while y.abs().max() > 1:
            y = y / 2
    elif how == "branch":
        if fault == "one rank" and dist.get_rank() == 0:
            y = ls.all_reduce(y, "tp", src=P, dst=I)
        if y.sum().item() > -100:
            y = y * 1.5
    elif how == "numpy":
        y = y * torch.from_numpy(y.detach().abs().numpy())
    elif how == "tolist":
        y = y * max(y.detach().abs().flatten().tolist())
    elif how == "number":
        scale = y.detach().norm().item()
        y = y / scale if scale > 1 else y
    return y.square().sum()


def _clip(model: Block, fault: str) -> None:
    shards = sum(w.grad.square().sum() for w in (model.up, model.down))
    if fault != "own norm":
        shards = ls.all_reduce(shards, "tp", src=P, dst=I)
    norm = (shards + model.gain.grad.square().sum()).sqrt().item()
    if norm > 0.01:
        for weight in model.parameters():
            weight.grad.mul_(0.01 / norm)
