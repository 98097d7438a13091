"""A rank leaves out a step, unguarded and guarded: torchrun ... -m tests.ranks.guard"""

from __future__ import annotations

import torch
import torch.distributed as dist

import lockstep as ls
from tests.ranks.launch import Here

me = Here()
mesh = ls.mesh("cpu", dp=-1)
now = {"step": 0}


def total(x: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks."""
    sum_of_all = x.clone()
    dist.all_reduce(sum_of_all)
    return sum_of_all


options = {"mesh": mesh, "data": "dp", "backend": "graph", "check": "off"}
plain = ls.compile(**options)(total)
guarded = ls.compile(**options, guard=lambda: now["step"])(total)


def main() -> None:
    """Rank 1 leaves out step 2, as on a bad batch; each step brings its number."""
    sums: list[float] = []
    steps = [1, 2] if me.rank == 0 else [1, 3]
    for step in steps:
        sums.append(plain(torch.tensor([float(step)])).item())
    for step in steps:
        now["step"] = step
        try:
            sums.append(guarded(torch.tensor([float(step)])).item())
        except ls.LockstepError as error:
            me.result({"sums": sums, "kind": type(error).__name__, "told": str(error)})
            raise


if __name__ == "__main__":
    main()
