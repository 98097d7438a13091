"""From the third call on one rank's batch has another size, as at the end of uneven data."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls

LIMIT_S, LONGER, PROBED = 20, 1.8, 6  # a recompile should take 1.8 times the limit
dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
mesh, rank = ls.mesh(dp=-1), dist.get_rank()


class Block(nn.Module):
    """A block whose code the compiler takes a while to make."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.softmax(torch.tanh(self.up(self.norm(x))), -1))


def blocks(count: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(count)])


def enough() -> int:
    """So many blocks that this machine compiles longer than the limit; rank 0 says it for all."""
    torch.compile(blocks(1))(torch.randn(3, 32)).sum().backward()  # the compiler's own start
    begin = time.monotonic()
    torch.compile(blocks(PROBED))(torch.randn(3, 32)).sum().backward()
    each = (time.monotonic() - begin) / PROBED
    count = torch.tensor(min(400.0, max(8.0, LIMIT_S * LONGER / each)))
    dist.broadcast(count, 0)
    return int(count)


@ls.compile(mesh=mesh, data="dp", dynamic={"x": {0: (2, 64)}})
def step(model: nn.Module, x: Tensor) -> Tensor:
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


count = int(sys.argv[1]) if sys.argv[1:] else enough()
print(f"{count} blocks", flush=True)
model = blocks(count)
for call in range(5):
    size = 12 if rank == 1 and call >= 2 else 8
    begin = time.monotonic()
    print(f"call {call} on rank {rank}: loss {step(model, torch.randn(size, 32)).item():.3f} "
          f"in {time.monotonic() - begin:.1f} s", flush=True)  # fmt: skip
    model.zero_grad()
dist.destroy_process_group()
