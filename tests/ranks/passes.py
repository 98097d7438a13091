"""A step with passes and without, on real ranks: torchrun ... -m tests.ranks.passes"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls
from lockstep import _compat
from tests.ranks.launch import Here

me = Here()
mesh = ls.mesh("cpu", dp=-1)
size = mesh.size()
ON = {"bucket": True, "overlap": True}


class Deep(nn.Module):
    """Layers of two widths, whose gradients come one after another."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> tuple[Tensor, ...]:
    """Gradients one after another, in place, as scripts write it; gathers and draws beside them."""
    ops = _compat.functional_collectives()
    parts = [x[: size * n].exp() for n in range(1, 6)]
    wide = [ops.all_gather_into_tensor(one, size, "dp") for one in parts]
    drawn = torch.rand_like(x)
    own = [ops.reduce_scatter_tensor(one, "sum", size, "dp") for one in parts]
    loss = model(x).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    return (loss.detach(), drawn, *[ops.wait_tensor(one) for one in (*wide, *own)])


def left(passes: dict[str, bool] | None) -> list[Tensor]:
    """All that two calls leave."""
    made = ls.compile(mesh=mesh, data="dp", backend="graph", passes=passes)(step)
    model = Deep()
    torch.manual_seed(3)
    x = torch.randn(6 * size, 24, generator=torch.Generator().manual_seed(me.rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    outputs = [one for _ in range(2) for one in made(model, x, optimizer)]
    return [*outputs, *model.parameters(), *[p.grad for p in model.parameters()]]


if __name__ == "__main__":
    plain, passed = left(None), left(ON)
    me.result([len(plain), sum(map(torch.equal, plain, passed))])
