"""A tensor-parallel script that `lockstep check` judges; its argument names what it does wrong."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep import I, P, R, S

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
mesh = ls.mesh(tp=-1)


def whole(*shape: int) -> torch.Tensor:
    """A tensor that is rank 0's on all ranks, since it was broadcast."""
    made = torch.randn(*shape)
    if FAULT != "no broadcast":
        dist.broadcast(made, 0)
    return made


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        ranks, rank = mesh.size(), mesh.get_local_rank()
        self.gain = nn.Parameter(whole(8))
        self.up = nn.Parameter(whole(16, 8).chunk(ranks)[rank].clone())
        self.down = nn.Parameter(whole(8, 16).chunk(ranks, 1)[rank].clone())
        for weight, kind in ((self.gain, I), (self.up, S(0)), (self.down, S(1))):
            ls.typed(weight, tp=kind)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.gain
        wide = x if FAULT == "no convert" else ls.convert(x, "tp", src=I, dst=R)
        hidden = torch.relu(wide @ self.up.t())
        return ls.all_reduce(hidden @ self.down.t(), "tp", src=P, dst=I)


@ls.compile(mesh=mesh)
def train_step(model: Block, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss


@ls.compile(mesh=mesh)
def evaluate(model: Block, x: torch.Tensor) -> torch.Tensor:
    return model(x)


torch.manual_seed(dist.get_rank())
block, x = Block(), whole(4, 8)
if FAULT == "raises" and dist.get_rank():
    raise KeyError("lr")
if FAULT == "rank 0 alone" and dist.get_rank():
    sys.exit(0)
train_step(block, x)
print("the step was not the end of the script")
