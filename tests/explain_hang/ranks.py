"""One of four gloo ranks, one of which does what it should not; leaves its flight record.

python -m tests.explain_hang.ranks HOW FOLDER RANK
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # of gloo nothing else asks

WORLD, ODD, STUCK_S = 4, 2, 4.0


def skips(rank: int) -> None:
    x = torch.ones(8)
    dist.all_reduce(x)
    if rank != ODD:
        dist.all_reduce(x)  # skipped
    dist.all_reduce(x)
    dist.all_reduce(x)


def swaps(rank: int) -> None:
    first, second = dist.new_group(group_desc="first"), dist.new_group(group_desc="second")
    x = torch.ones(8)
    dist.all_reduce(x)
    if rank == ODD:
        dist.all_reduce(x, group=second)  # swapped
        dist.all_reduce(x, group=first)
    else:
        dist.all_reduce(x, group=first)
        dist.all_reduce(x, group=second)


def dies(rank: int) -> None:
    x = torch.ones(8)
    dist.all_reduce(x)
    dist.all_reduce(x)
    if rank == ODD:
        os._exit(9)
    dist.all_reduce(x)  # died


def main(how: str, folder: Path, rank: int) -> None:
    """Call what `how` says; after some seconds leave the record, wherever the calls have come."""

    def leave() -> None:
        begun.wait()
        threading.Event().wait(STUCK_S)
        (folder / f"flight_{rank}").write_bytes(_dump_fr_trace())
        os._exit(0)

    begun = threading.Event()
    store = f"file://{folder}/store"
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store, timeout=limit, rank=rank, world_size=WORLD)
    watcher = threading.Thread(target=leave)
    watcher.start()
    begun.set()
    with contextlib.suppress(RuntimeError):  # gloo refuses some of it, and hangs in the rest
        {"skips": skips, "swaps": swaps, "dies": dies}[how](rank)
    watcher.join()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
