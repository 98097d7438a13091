"""The word of a start: one for all its ranks, though the store still holds an earlier start's."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore, Store

from lockstep.errors import FleetError
from lockstep.spmd.start import KEY, meet


def started(store: Store, world: int, first: int = 0) -> list[str]:
    """Start so many ranks, from one on and around, each in a thread; return their words."""
    words = [""] * world

    def run(rank: int) -> None:
        words[rank] = meet(store, rank, world, 20)

    threads = [threading.Thread(target=run, args=((first + i) % world,)) for i in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return words


def test_all_ranks_of_a_start_have_one_word_and_another_start_has_another():
    store = HashStore()
    seen = []
    for world, first in ((3, 0), (3, 1), (2, 1), (4, 3)):  # rank 0 comes last but once
        words = started(store, world, first)
        assert len(set(words)) == 1 and words[0] not in seen
        seen += words


def test_an_earlier_start_s_word_is_never_taken():
    store = HashStore()
    (old, *_) = started(store, 2)
    taken: list[str] = []
    rank = threading.Thread(target=lambda: taken.append(meet(store, 1, 2, 20)))
    rank.start()
    while not store.check([f"{KEY}/{old}/came/1"]):
        pass
    rank.join(0.2)
    assert rank.is_alive() and taken == []  # it read the old word, and rank 0 has not answered it
    new = meet(store, 0, 2, 20)
    rank.join(20)
    assert taken == [new] != [old]


def test_a_rank_0_that_does_not_begin_is_told():
    with pytest.raises(FleetError, match="rank 1 waits 0 s for rank 0 to begin"):
        meet(HashStore(), 1, 2, 0.1)
