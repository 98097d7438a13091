"""A built step under torchrun, with LOCKSTEP_TRACE_CALLS=1: one rank ends before its third call."""

from __future__ import annotations

import json
import os
import time

import torch
import torch.distributed as dist

import lockstep as ls
from lockstep.run.session import session

ODD, CALL = 3, 3
mesh = ls.mesh(dp=-1)


@ls.compile(mesh=mesh, backend="graph")
@torch.no_grad()
def step(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)  # died
    y = x * 2
    dist.all_reduce(y)
    return y


def others_are_in(call: int) -> bool:
    """Whether all other ranks stand in a call, by what they have written down."""
    found = [json.loads(file.read_text()) for file in session().folder.glob("*.calls")]
    return sum(at["call"] == call and at["began"] == 1 for at in found) == len(found) - 1


for call in range(1, CALL + 1):
    if call == CALL and dist.get_rank() == ODD:
        while not others_are_in(CALL):
            time.sleep(0.05)
        os._exit(9)
    step(torch.ones(4))
