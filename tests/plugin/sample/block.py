"""A user's tensor-parallel block, with sequence parallelism or without."""

import torch
from torch import nn

import lockstep as ls
from lockstep import I, P, R, S

WIDTH, HIDDEN, TOKENS = 8, 16, 4


def weight(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    def __init__(self, mesh, sp: bool) -> None:
        super().__init__()
        self.sp, ranks, rank = sp, mesh.size(), mesh.get_local_rank()
        self.norm = nn.Parameter(weight(0, WIDTH))
        self.up = nn.Parameter(weight(1, HIDDEN, WIDTH).chunk(ranks)[rank].clone())
        self.down = nn.Parameter(weight(2, WIDTH, HIDDEN).chunk(ranks, 1)[rank].clone())
        for parameter, kind in ((self.norm, I), (self.up, S(0)), (self.down, S(1))):
            ls.typed(parameter, tp=kind)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.norm  # wrong under sequence parallelism

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.scaled(x)
        if self.sp:
            h = ls.all_gather(h, "tp", src=S(0), dst=R)
        else:
            h = ls.convert(h, "tp", src=I, dst=R)
        h = torch.relu(h @ self.up.t()) @ self.down.t()
        if self.sp:
            return ls.reduce_scatter(h, "tp", src=P, dst=S(0))
        return ls.all_reduce(h, "tp", src=P, dst=I)


class MendedBlock(Block):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        norm = ls.convert(self.norm, "tp", src=I, dst=R) if self.sp else self.norm
        return x * norm


def batch(mesh, sp: bool) -> torch.Tensor:
    tokens = weight(3, TOKENS, WIDTH)
    if not sp:
        return tokens
    return ls.typed(tokens.chunk(mesh.size())[mesh.get_local_rank()].clone(), tp=S(0))


def step(block: Block, x: torch.Tensor) -> torch.Tensor:
    loss = block(x).square().sum()
    if block.sp:
        loss = ls.typed(loss, tp=P)
    loss.backward()
    return loss
