"""A whole training step: an optimizer of its own inside, hooks, checkpoints and autocast."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CLIP = 1.0
SKIPPED = ("bias", "norm")
DTYPE = torch.bfloat16


class Slow(torch.optim.Optimizer):
    """Momentum with a pull towards zero."""

    pull: float = 0.01

    def __init__(self, params: Any, lr: float = 0.1, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": True})
        self.floor = 0.001

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p, group)

    def update(self, p: Any, group: dict[str, Any]) -> None:
        state = self.state[p]
        moved = state["moved"].mul_(group["momentum"]).add_(p.grad)
        along = p.grad + moved * group["momentum"] if group["nesterov"] else moved
        p.mul_(1 - self.pull)
        p.add_(along.clamp(min=self.floor), alpha=-1.0).sub_(along * group["lr"])


def damp(grad: Any, factor: float = 0.5) -> Any:
    return grad * factor


def double(module: Any, args: Any, output: Any) -> Any:
    return output * module.boost


def bounded(x: Any, edge: float) -> Any:
    return x.clamp(-edge, edge)


class Block(nn.Module):
    def __init__(self, wide: int, between: Any) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, wide), nn.Linear(wide, 4)
        self.norm = nn.LayerNorm(4)
        self.between = between

    def forward(self, x: Any) -> Any:
        return x + self.down(self.between(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict({"first": Block(5, F.gelu), "second": Block(6, torch.tanh)})
        self.register_buffer("seen", torch.zeros(1))
        self.decay = 0.99
        self.again = True

    def forward(self, x: Any) -> Any:
        for name, block in self.blocks.items():
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
            if name == "first":
                x = bounded(x, 4.0)
        self.seen.mul_(self.decay).add_(1 - self.decay)
        return x


def clip(model: Any, limit: float) -> Any:
    norms = [p.grad.norm() for n, p in model.named_parameters() if not n.endswith(SKIPPED)]
    total = torch.stack(norms).norm(2.0)
    scale = (limit / (total + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad.mul_(scale)
    return total


def train_step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    with torch.autocast("cpu", dtype=DTYPE, enabled=True):
        h = model(x)
    loss = F.mse_loss(h.float(), y) + 0.1 * h.float().abs().mean()
    loss.backward()
    total = clip(model, CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach(), total


def build(mesh: Any) -> tuple[Any, tuple[Any, ...]]:
    model = Model()
    first = model.blocks["first"]
    first.boost = 1.25
    first.register_forward_hook(double)
    first.up.weight.register_hook(partial(damp, factor=0.25))
    model.blocks["second"].down.bias.register_hook(lambda grad: grad * 2)
    decayed = [p for n, p in model.named_parameters() if "norm" not in n]
    rest = [p for n, p in model.named_parameters() if "norm" in n]
    optimizer = Slow([{"params": decayed}, {"params": rest, "momentum": 0.5}], lr=0.05)
    for p in model.parameters():
        optimizer.state[p]["moved"] = torch.zeros_like(p)
    return train_step, (model, optimizer, torch.randn(2, 4), torch.randn(2, 4))
