"""Two ranks whose batches leave a declared range of sizes, or break a guard, at the third call."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import lockstep as ls
from tests.ranks.launch import Here

here = Here()
mesh = ls.mesh(dp=-1)
# How -> size of each rank at each call; the range is 2 to 64, and the step branches at 40.
CALLS = {
    "all outside": [(4, 9), (40, 2), (65, 70)],
    "one outside": [(4, 9), (40, 2), (5, 70)],
    "a guard": [(4, 9), (40, 2), (5, 41)],
    "built": [(4, 9), (65, 65), (7, 2), (65, 65), (41, 41)],
}


def total(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 if x.shape[0] <= 40 else x * 3
    return ls.all_reduce(y.sum(), "dp", src=ls.P, dst=ls.R)


def main(how: str) -> None:
    new = "build" if how == "built" else None
    dynamic = {"x": {0: (2, 64)}}
    step = ls.compile(total, mesh=mesh, backend="graph", on_new_shape=new, dynamic=dynamic)
    rows = []
    for sizes in CALLS[how]:
        rows.append(step(torch.ones(sizes[here.rank])).item())
        here.result(rows)


if __name__ == "__main__":
    main(sys.argv[1])
    dist.destroy_process_group()
