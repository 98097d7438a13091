"""A job that uses the fleet alone, under torchrun: torchrun ... -m tests.ranks.fleet_script HOW"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from lockstep.fleet import ArtifactStore, Fleet, install_hooks
from lockstep.journal import Journal
from tests.ranks.launch import Here


def main(how: str) -> None:
    """Vote, then reduce; rank 1 fails where `how` says so."""
    me = Here()
    dist.init_process_group("gloo")
    store, _, _ = next(iter(dist.rendezvous("env://")))
    rank, world = dist.get_rank(), dist.get_world_size()
    journal = Journal(me.folder / f"runs/2/rank{rank}.jsonl", rank)
    fleet = Fleet(store, rank, world, f"run/{how}", local_rank=rank, journal=journal)
    install_hooks(fleet)
    kept = ArtifactStore(os.environ["LOCKSTEP_STORE"], rank=rank)
    got = fleet.obtain("step/v0", {"how": how}, "a.lockstep", kept, lambda stage: b"bytes")
    me.result(got.role)
    for number in range(1, 4):
        fleet.call("step", "v0", number)
        if rank == 1 and number == 2 and how == "uncaught":
            me.strike()
            raise ValueError("bad batch")
        if rank == 1 and number == 2 and how == "exits":
            me.strike()
            sys.exit(3)
        with fleet.guard(f"running step, call {number}"):
            dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
