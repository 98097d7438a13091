"""One wrong gradient, from its symptom to its fix: `python examples/wrong_gradient.py`.

A tensor-parallel block trains. Its loss falls, nothing fails; a comparison with one rank would
show other weights after a day. Here the checker is asked instead, in a second.
"""

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

import lockstep as ls
from lockstep import I, P, R

WHOLE = {"proj": (8, 8), "up": (32, 8), "down": (8, 32)}


class Block(nn.Module):
    """A projection that all ranks hold alike, then a two-layer block cut over tp."""

    def __init__(self, mesh: DeviceMesh, converts: bool) -> None:
        super().__init__()
        ranks, rank = mesh["tp"].size(), mesh.get_local_rank("tp")
        draw = torch.Generator().manual_seed(0)
        whole = {name: torch.randn(shape, generator=draw) / 8 for name, shape in WHOLE.items()}
        self.proj = nn.Parameter(whole["proj"])
        self.up = nn.Parameter(whole["up"].chunk(ranks, 0)[rank].clone())
        self.down = nn.Parameter(whole["down"].chunk(ranks, 1)[rank].clone())
        self.converts = converts

    def forward(self, x: Tensor) -> Tensor:
        h = x @ self.proj.T
        if self.converts:
            h = ls.convert(h, "tp", src=I, dst=R)  # forward: nothing; backward: all-reduce
        h = (h @ self.up.T).relu()
        return ls.all_reduce(h @ self.down.T, "tp", src=P, dst=I)


def step(model: Block, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss


def ask(converts: bool) -> bool:
    """Judge the step on two simulated ranks, and print what was found."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    report = ls.check(step, lambda mesh: (Block(mesh, converts), x), mesh={"tp": 2})
    print(report, end="\n\n")
    return report.ok


def main() -> None:
    print("1. As it was written: the loss is right, and so it trains.\n")
    assert not ask(converts=False)
    print("2. With the line that the finding names.\n")
    assert ask(converts=True)


if __name__ == "__main__":
    main()
