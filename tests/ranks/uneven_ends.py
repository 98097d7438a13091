"""One of two ranks stays away from a batch, or its loader fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

import lockstep as ls
from tests.ranks.launch import Here

here = Here()
mesh = ls.mesh(dp=-1)


def loader(fails_at: int) -> Iterator[torch.Tensor]:
    for number in range(6):
        if number == fails_at and here.rank == 1:
            raise OSError("shard 3 is not there")
        yield torch.ones(2, 3)


def main(how: str) -> None:
    batches = ls.even_batches(loader(4 if how == "fails" else -1), mesh, timeout_s=2)
    for step, (_, weights) in enumerate(batches):
        if how == "stays" and here.rank == 1 and step == 2:
            dist.barrier()  # stays in there, and comes to no other batch
        if how == "fails":
            ls.all_reduce(weights.sum(), "dp", src=ls.P, dst=ls.R)
    here.result("ended")


if __name__ == "__main__":
    main(sys.argv[1])
    dist.destroy_process_group()
