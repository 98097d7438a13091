"""A slow network for CPU ranks: gloo, whose collectives take longer by a delay and by their bytes.

    import bench.slow_network                       # registers the back end "slow"
    dist.init_process_group("slow")                 # BENCH_DELAY_MS=1 BENCH_GBIT_S=1

A group carries two collectives at once, as gloo's own threads do; a third begins when one of them
ends. Nothing is slept where nobody waits: each collective is given the time at which the network
would have had it there, and a wait sleeps what is left of it. Nothing of this is in a program.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist

NAME, AT_ONCE = "slow", 2
DELAY, RATE = "BENCH_DELAY_MS", "BENCH_GBIT_S"


class Network:
    """How slow it is now: `delay_s` of each collective, and its bytes at `gbit_s`; 0: no limit.

    `slept_s` is how long this rank has slept for it so far: what the step did not hide.
    """

    delay_s = float(os.environ.get(DELAY, "0")) / 1e3
    gbit_s = float(os.environ.get(RATE, "0"))
    slept_s = 0.0

    @classmethod
    def takes(cls, tensor: torch.Tensor) -> float:
        """Seconds of a collective of a tensor."""
        size = tensor.numel() * tensor.element_size()
        return cls.delay_s + (size * 8e-9 / cls.gbit_s if cls.gbit_s else 0.0)


class _Work(dist.Work):  # type: ignore[misc]
    """A collective under way, until a time at least."""

    def __init__(self, inner: Any, until: float) -> None:
        super().__init__()
        self._inner, self._until = inner, until

    def wait(self, timeout: Any = None) -> bool:
        self._inner.wait()
        left = self._until - time.perf_counter()
        if left > 0:
            Network.slept_s += left
            time.sleep(left)
        return True

    def get_future(self) -> Any:
        return self._inner.get_future()


class _Slow(dist.ProcessGroup):  # type: ignore[misc]
    """Hands each call to gloo, and says when the network would be done with it."""

    def __init__(self, inner: Any, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._inner = inner
        self._lanes = [0.0] * AT_ONCE

    def getBackendName(self) -> str:
        return NAME

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The base class has it of a back end in C++."""
        return self._name

    def _until(self, tensor: torch.Tensor) -> float:
        lane = self._lanes.index(min(self._lanes))
        begin = max(time.perf_counter(), self._lanes[lane])
        self._lanes[lane] = begin + Network.takes(tensor)
        return self._lanes[lane]

    def allreduce(self, tensors: Any, *rest: Any) -> Any:
        until = self._until(tensors[0])
        return _Work(self._inner.allreduce(tensors, *rest), until)

    def _allgather_base(self, output: Any, source: Any, *rest: Any) -> Any:
        until = self._until(output)
        return _Work(self._inner._allgather_base(output, source, *rest), until)

    def _reduce_scatter_base(self, output: Any, source: Any, *rest: Any) -> Any:
        until = self._until(source)
        return _Work(self._inner._reduce_scatter_base(output, source, *rest), until)

    def broadcast(self, tensors: Any, *rest: Any) -> Any:
        until = self._until(tensors[0])
        return _Work(self._inner.broadcast(tensors, *rest), until)

    def barrier(self, *rest: Any, **named: Any) -> Any:
        return self._inner.barrier(*rest, **named)


def _made(store: Any, rank: int, size: int, timeout: Any) -> _Slow:
    return _Slow(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size)


dist.Backend.register_backend(NAME, _made, devices=["cpu"])
