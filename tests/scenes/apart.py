"""Rank 0 normalises before it adds up, the other rank after it: two programs."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls

LIMIT = timedelta(seconds=20)
dist.init_process_group("gloo", timeout=LIMIT)
others = dist.new_group(timeout=LIMIT)  # of the same ranks, for norms
mesh = ls.mesh(dp=-1)


@ls.compile(mesh=mesh, data="dp")
@torch.no_grad()
def step(x: Tensor) -> Tensor:
    total = x.sum(1)
    if dist.get_rank() == 0:
        norms = total.abs()
        dist.all_reduce(norms, group=others)
        total = total / norms
        dist.all_reduce(total)
    else:
        dist.all_reduce(total)
        norms = total.abs()
        dist.all_reduce(norms, group=others)
        total = total / norms
    return total


for call in range(3):
    print(f"call {call}: {step(torch.ones(8, 4)).sum().item()}", flush=True)
dist.destroy_process_group()
