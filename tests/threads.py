"""Ranks as threads of one process: what crosses between them goes through lists.

For tests of code that only meets other ranks in `lockstep.spmd.collectives` and asks only
`lockstep.spmd.ops.coordinate` for its place. A rank is the plain arithmetic of the list of all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lockstep.spmd import actions, calls, collectives, direct, ops, plans

LIMIT = 20.0  # seconds that a rank waits for the others


class World:
    """Runs a function once for each rank of an axis "tp", each on a thread of its own."""

    def __init__(self, ranks: int, patch: pytest.MonkeyPatch) -> None:
        self.ranks, self.here = ranks, threading.local()
        self._slots: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks)
        patch.setattr(calls, "_made", {})
        axis = SimpleNamespace(size=ranks)
        patch.setattr(calls, "_axes", {"tp": axis})
        patch.setattr(calls, "axis_named", lambda name: axis)
        patch.setattr(ops, "coordinate", lambda name: self.here.rank)
        patch.setattr(plans, "coordinate", lambda name: self.here.rank)
        patch.setattr(collectives, "wait", lambda x: x)
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            patch.setattr(collectives, name, getattr(self, name))
            patch.setattr(direct, name, getattr(self, name))
        patch.setattr(actions.Reduce, "now", lambda a, x: self.all_reduce(x, a.op, a.axis))

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Return what the function gave for each rank."""

        def start(rank: int) -> Any:
            self.here.rank = rank
            try:
                return function(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.ranks) as pool:
            return [done.result() for done in [pool.submit(start, r) for r in range(self.ranks)]]

    def swap(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        self._slots[self.here.rank] = value
        self._barrier.wait(LIMIT)
        values = list(self._slots)
        self._barrier.wait(LIMIT)
        return values

    def all_reduce(self, x: torch.Tensor, op: str, axis: str) -> torch.Tensor:
        stacked = torch.stack(self.swap(x))
        return {"sum": stacked.sum(0), "max": stacked.amax(0), "min": stacked.amin(0)}[op]

    def all_gather(self, x: torch.Tensor, size: int, axis: str) -> torch.Tensor:
        return torch.cat(self.swap(x))

    def reduce_scatter(self, x: torch.Tensor, op: str, size: int, axis: str) -> torch.Tensor:
        return torch.stack(self.swap(x)).sum(0).chunk(size)[self.here.rank]

    def all_to_all(self, x: torch.Tensor, out: list[int], sent: list[int], axis: str) -> Any:
        parts = [value.split(splits) for value, splits in self.swap((x, sent))]
        return torch.cat([part[self.here.rank] for part in parts])

    def broadcast(self, x: torch.Tensor, source: int, axis: str) -> torch.Tensor:
        return self.swap(x)[source].clone()
