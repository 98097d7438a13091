"""Ranks that obtain two artifacts, under two agents: one of a directory a node, one of a URL."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from lockstep.fleet import ArtifactStore, Fleet, install_hooks
from lockstep.journal import Journal
from tests.ranks.launch import Here

DATA = bytes(range(256)) * 40_000  # 10 MB: three chunks


def main(url: str) -> None:
    """Build and ship, then build and put, then start as a job does that finds both."""
    me, rank, world = Here(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, _, _ = next(iter(dist.rendezvous("env://")))
    journal = Journal(me.folder / f"runs/2/rank{rank}.jsonl", rank)
    node, local = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])
    fleet = Fleet(
        store, rank, world, "run/0", node=node, local_rank=local, nodes=2, journal=journal
    )
    install_hooks(fleet)
    places = {"own": os.environ["LOCKSTEP_STORE"], "shared": url}
    rows = []
    for name in ("own", "shared", "own", "shared"):
        kept = ArtifactStore(places[name], rank=rank, journal=journal)
        got = fleet.obtain(f"{name}/v0", {}, f"{name}.lockstep", kept, lambda stage: DATA)
        assert got.data == DATA
        rows.append([got.role, got.path])
    me.result(rows)
    fleet.close()


if __name__ == "__main__":
    main(sys.argv[1])
