"""`LOCKSTEP=torch|torch-one-rank`: the step under `torch.compile`, with the same journal as ours.

Each rank traces, lowers and compiles for itself, or finds the result in torch's cache once it
has traced. A `backward()` inside the step is a graph break: what is before and after is compiled.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from lockstep import _compat
from lockstep.errors import LoweringError, first_line
from lockstep.journal import Journal
from lockstep.run.counting import counting, starts
from lockstep.run.modes import OFF, TORCH_ONE_RANK, mode, tell
from lockstep.run.session import how_started, open_journal
from lockstep.spmd.effects import keep_out_of_compiler
from lockstep.spmd.mesh import default_device_type, start_process_group

TOLD_CALLS = 3  # the first calls are in the journal, as Lockstep's own are


def other_way(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The step as `LOCKSTEP=off|torch|torch-one-rank` asks for it; rank 0 says which.

    Args:
        name: the step's name in the journal.
        function: the user's function.

    Returns:
        A callable like the function. Under torch, its first call is collective: the ranks agree on
        the run's folder.
    """
    tell(name)
    if mode() == OFF:
        return function
    if mode() == TORCH_ONE_RANK:
        torch.compiler.config.compile_on_one_rank = True
    return TorchStep(name, function)


class TorchStep:
    """A step under `torch.compile`. Every compilation is an event like Lockstep's "ready"."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        self._calls = self._variants = self._seen = 0
        self._last: _Usage

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        journal = _journal()
        begin = _Usage.now() if self._calls <= TOLD_CALLS else self._last.at(time.monotonic())
        if self._compiled is None:
            keep_out_of_compiler()
            self._compiled = torch.compile(self._function)
            self._frames = _compat.frame_count()
        self._calls += 1
        try:
            result = self._compiled(*args, **kwargs)
        except _compat.compile_error() as error:
            refused = _refused(self.name, error)
            journal.event("refused", step=self.name, call=self._calls, text=str(refused))
            raise refused from error
        if self._calls > TOLD_CALLS and self._frames() == self._seen:
            return result
        self._last, self._seen = _Usage.now(), self._frames()
        self._tell_call(self._last.since(begin))
        return result

    def _tell_call(self, spent: _Usage) -> None:
        if self._calls == 1 or spent.counts["frames"] or spent.counts["lowerings"]:
            self._tell(spent)
        _journal().event(
            "ran",
            step=self.name,
            variant=f"v{max(self._variants - 1, 0)}",
            call=self._calls,
            seconds=round(spent.seconds, 4),
        )

    def _tell(self, spent: _Usage) -> None:
        keys = _cache_keys()
        rank, variant = dist.get_rank(), f"v{self._variants}"
        self._variants += 1
        processes = starts(spent.counts)
        _journal().event(
            "ready",
            role="built" if spent.counts["lowerings"] else "loaded",
            step=self.name,
            variant=variant,
            path=_compat.inductor_cache_folder() if keys else None,
            digest=hashlib.sha256("\n".join(keys).encode()).hexdigest() if keys else None,
            by=rank if spent.counts["lowerings"] else None,
            backend="torch.compile",
            graphs=len(keys),
            frames=spent.counts["frames"],
            lowerings=spent.counts["lowerings"],
            hits=spent.counts["hits"],
            misses=spent.counts["misses"],
            compilers=sum(processes.values()),
            processes=processes,
            seconds={
                "compile": round(spent.compile_seconds, 4),
                "total": round(spent.seconds, 4),
                "cpu": round(spent.cpu_seconds, 4),
                "load": 0.0,
            },
        )
        if rank == 0:
            from lockstep.fleet.say import say

            say(0, f"{self.name} {variant}: {_words(spent)}")


@dataclass(frozen=True)
class _Usage:
    """What this process has spent so far, or between two moments."""

    seconds: float
    compile_seconds: float
    cpu_seconds: float
    counts: Any

    @staticmethod
    def now() -> _Usage:
        begin = time.monotonic()  # before the first import of the compiler: it is part of the cost
        who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
        cpu = sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))
        counts = counting().copy()
        counts.update(_compat.compile_counts())
        return _Usage(begin, _compat.compile_seconds(), cpu, counts)

    def at(self, seconds: float) -> _Usage:
        return replace(self, seconds=seconds)

    def since(self, before: _Usage) -> _Usage:
        counts = self.counts.copy()
        counts.subtract(before.counts)
        return _Usage(
            self.seconds - before.seconds,
            self.compile_seconds - before.compile_seconds,
            self.cpu_seconds - before.cpu_seconds,
            counts,
        )


def _words(spent: _Usage) -> str:
    counts = spent.counts
    found = f", {counts['hits']} graph(s) from torch's cache" if counts["hits"] else ""
    return (
        f"rank 0 traced {counts['frames']} frame(s) and lowered {counts['lowerings']} graph(s) in "
        f"{spent.seconds:.1f} s, {sum(starts(counts).values())} compiler process(es){found}; "
        "every rank does so for itself"
    )


def _cache_keys() -> list[str]:
    """The keys of the graphs that torch has put into its cache, or found there, in this process."""
    saved = torch.compiler.save_cache_artifacts()
    return list(saved[1].inductor_artifacts) if saved is not None else []


@functools.cache
def _journal() -> Journal:
    start_process_group(default_device_type())
    store = _compat.default_store() if dist.get_world_size() > 1 else None
    journal, *_ = open_journal(store)
    journal.event("start", **how_started(dist.get_rank()))
    atexit.register(journal.close)
    return journal


def _refused(name: str, error: Exception) -> LoweringError:
    others = [f"LOCKSTEP={word}" for word in ("torch", "off") if word != mode()]
    return LoweringError(
        f"LOCKSTEP={mode()}: torch.compile cannot compile {name}",
        got=f"{type(error).__name__}: {first_line(error)}",
        why="this is torch's own compiler, without anything of Lockstep's",
        fix=["unset LOCKSTEP", *others],
    )
