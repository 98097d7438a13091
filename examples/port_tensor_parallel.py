"""A hand-written tensor-parallel model, ported: `python examples/port_tensor_parallel.py`.

Before: autograd Functions and raw collectives. After: typed collectives. Both are checked.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls
from lockstep import I, P, R


class Copy(torch.autograd.Function):
    """Into the sharded region: nothing in the forward, an all-reduce in the backward."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Reduce(torch.autograd.Function):
    """Out of it: an all-reduce in the forward, nothing in the backward."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def by_hand(x: Tensor, up: Tensor, down: Tensor, group: dist.ProcessGroup) -> Tensor:
    return Reduce.apply((Copy.apply(x, group) @ up.T).relu() @ down.T, group)


def ported(x: Tensor, up: Tensor, down: Tensor, _group: dist.ProcessGroup) -> Tensor:
    h = ls.convert(x, "tp", src=I, dst=R)
    return ls.all_reduce((h @ up.T).relu() @ down.T, "tp", src=P, dst=I)


class Block(nn.Module):
    def __init__(self, mesh, mlp) -> None:
        super().__init__()
        ranks, rank, self.group = mesh.size(), mesh.get_local_rank("tp"), mesh.get_group("tp")
        torch.manual_seed(0)
        self.proj, self.mlp = nn.Linear(8, 8), mlp
        self.up = nn.Parameter(torch.randn(32, 8).chunk(ranks, 0)[rank] / 8)
        self.down = nn.Parameter(torch.randn(8, 32).chunk(ranks, 1)[rank] / 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.proj(x), self.up, self.down, self.group)


def step(model: Block, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss


def right(mlp) -> bool:
    """Judge a model on four simulated ranks, and print what was established."""
    x = torch.linspace(-1, 1, 32).view(4, 8)
    report = ls.check(step, lambda mesh: (Block(mesh, mlp), x), mesh={"tp": 4})
    print(f"{mlp.__name__}\n{report}\n")
    return report.ok


if __name__ == "__main__":
    assert right(by_hand) and right(ported)
