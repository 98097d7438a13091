"""The ranks of one start of a job find each other, in a store whose keys outlive a restart.

torchrun keeps its store through restarts, with all that the last start has left in it, and each
agent counts the restarts that it has seen itself. So neither keys nor counts tell starts apart on
all ranks. Rank 0 has a new word at each start, and a rank takes a word only where rank 0 has
answered this very process.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from typing import TYPE_CHECKING

from lockstep.errors import FleetError

if TYPE_CHECKING:
    from torch.distributed import Store

KEY = "lockstep/start"
WAIT_S = 300.0
PAUSE_S = 0.02  # between two looks, in a small world


def meet(store: Store, rank: int, world: int, wait_s: float = WAIT_S) -> str:
    """Return the word of this start, the same on all its ranks, and no other start's.

    Rank 0 does not wait: a thread of its own answers the others as they come.

    Args:
        store: the job's store, which may hold an earlier start's keys.
        rank, world: as in that start.
        wait_s: how long rank 0 is waited for.

    Raises:
        FleetError: rank 0 has not begun in time.

    Example:
        >>> from torch.distributed import HashStore
        >>> meet(HashStore(), 0, 1) != meet(HashStore(), 0, 1)
        True
    """
    if rank == 0:
        word = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(4)}"
        store.set(KEY, word)
        if world > 1:
            work = (store.clone(), word, world, wait_s)
            threading.Thread(target=_answer, args=work, name="lockstep-meet", daemon=True).start()
        return word
    mine, word, until = secrets.token_hex(8), "", time.monotonic() + wait_s
    while time.monotonic() < until:
        now = _read(store, KEY)
        if now and now != word:
            word = now
            store.set(f"{KEY}/{word}/came/{rank}", mine)
        if word and _read(store, f"{KEY}/{word}/met/{rank}") == mine:
            return word
        time.sleep(_pause(world))
    raise FleetError(
        f"rank {rank} waits {wait_s:.0f} s for rank 0 to begin",
        why="every rank must make the mesh, and call the first compiled step",
        fix="see what rank 0 does",
    )


def _answer(store: Store, word: str, world: int, wait_s: float) -> None:
    """On rank 0: give each rank its own token back, so that it knows the word is this start's."""
    left, until = list(range(1, world)), time.monotonic() + wait_s
    try:
        while left and time.monotonic() < until:
            for rank in list(left):
                token = _read(store, f"{KEY}/{word}/came/{rank}")
                if token:
                    store.set(f"{KEY}/{word}/met/{rank}", token)
                    left.remove(rank)
            time.sleep(_pause(world))
    except RuntimeError:  # the store is gone, which every other user of it tells
        return


def _read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def _pause(world: int) -> float:
    return max(PAUSE_S, world / 8000)
