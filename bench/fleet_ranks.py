"""A job of light processes on this machine that agree on an artifact and ship it; see fleet.py.

The processes are forked and never make a process group: what they do is the control plane's part
alone. The rendezvous store is served by a process of its own, as a job's first agent does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import torch.distributed as dist
from fsspec.implementations.local import LocalFileSystem

from lockstep.fleet.client import Client
from lockstep.fleet.fleet import Fleet
from lockstep.fleet.store import ArtifactStore
from lockstep.journal import Journal

ON_A_NODE = 2  # ranks
CONTRACT = {f"source model.Layer.method{i}": f"{i:016x}" for i in range(60)}
LIMIT_S = 120.0

_fork = get_context("fork")  # light: torch is imported once, for all of them


@dataclasses.dataclass
class Costs:
    """What one round of `obtain` cost a job.

    Args:
        ranks: of the job.
        wall_s: seconds of the slowest rank, by round.
        calls: messages to the rendezvous store, by rank: those of the thread that obtains.
        rank_cpu_s: CPU seconds, summed over ranks, of one round.
        host_cpu_s: CPU seconds of the store's host, of one message.
        reads: of the artifact from the shared store, by node, in one round.
        hops: from the first holder, of the node that is farthest.
        hop_s: seconds of one of them.
    """

    ranks: int
    wall_s: list[float]
    calls: list[float]
    rank_cpu_s: float
    host_cpu_s: float
    reads: list[float]
    hops: int
    hop_s: float = 0.0

    @property
    def nodes(self) -> int:
        """How many nodes the job has."""
        return len(self.reads)


class Counted(LocalFileSystem):
    """A file system that counts how often this process reads an artifact."""

    protocol = "counted"
    reads = 0

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        """Read a file."""
        Counted.reads += 1
        return super().cat_file(path.removeprefix("counted://"), *args, **kwargs)


fsspec.register_implementation("counted", Counted, clobber=True)


def job(ranks: int, rounds: int, size: int, shared: bool, folder: Path) -> Costs:
    """Run a job whose ranks obtain an artifact `rounds` times.

    Args:
        size: of the artifact, in bytes.
        shared: whether all nodes have one store that has it, or each a store of its own, and the
            first node's alone has it.
        folder: for all files.
    """
    names = [f"{number}.lockstep" for number in range(rounds)]
    for name in names:
        with mock.patch.dict(os.environ, LOCKSTEP_COPIES=str(folder / "writer")):
            where = ArtifactStore(_url(folder) if shared else folder / "node0")
            where.write(name, os.urandom(size), required=True)
    host, inside = _fork.Pipe()
    server = _fork.Process(target=_serve, args=(inside,), daemon=True)
    server.start()
    port = host.recv()
    members = [
        _fork.Process(target=_rank, args=(rank, ranks, port, names, shared, folder), daemon=True)
        for rank in range(ranks)
    ]
    for member in members:
        member.start()
    try:
        for member in members:
            member.join(LIMIT_S)
            if member.exitcode != 0:
                raise SystemExit(f"a rank of {ranks} ended with {member.exitcode}")
        host.send("cpu")
        return _costs(ranks, rounds, host.recv(), folder)
    finally:
        for process in (*members, server):
            process.kill()
            process.join()


def _url(folder: Path) -> str:
    return f"counted://{folder}/shared"


def _serve(asked: Connection) -> None:
    """Serve the rendezvous store; tell the CPU seconds that it took when asked."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    asked.send(store.port)
    store.wait(["bench/go/0"])  # all have connected
    begin = time.process_time()
    while asked.recv():
        asked.send(time.process_time() - begin)


def _rank(rank: int, ranks: int, port: int, names: list[str], shared: bool, folder: Path) -> None:
    node, local = divmod(rank, ON_A_NODE)
    os.environ["LOCKSTEP_COPIES"] = str(folder / f"copies{node}")
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    own = dist.PrefixStore("bench", store.clone())
    journal = Journal(folder / f"rank{rank}.jsonl", rank)
    nodes = -(-ranks // ON_A_NODE)
    with _counted() as calls:
        fleet = Fleet(
            store, rank, ranks, "bench/0", node=node, local_rank=local, nodes=nodes, journal=journal
        )
    place = _url(folder) if shared else folder / f"node{node}"
    seen: dict[str, Any] = {"wall": [], "calls": 0, "reads": 0, "cpu": 0.0}
    calls.update(main=0, all=0)
    for number, name in enumerate(names):
        _meet(own, ranks, number)
        before, cpu, begin = Counted.reads, time.process_time(), time.perf_counter()
        fleet.obtain(f"step/v{number}", CONTRACT, name, ArtifactStore(place, rank=rank), _unbuilt)
        seen["wall"].append(time.perf_counter() - begin)
        seen["cpu"] += time.process_time() - cpu
        seen["reads"] += Counted.reads - before
    seen |= {"calls": calls["main"], "all calls": calls["all"]}
    (folder / f"rank{rank}.json").write_text(json.dumps(seen))
    _meet(own, ranks, len(names))
    fleet.close()


def _unbuilt(_stage: Callable[[str], None]) -> bytes:
    raise AssertionError("the artifact is there")


def _meet(store: dist.Store, ranks: int, number: int) -> None:
    """Go on when all ranks have come."""
    if store.add(f"came/{number}", 1) == ranks:
        store.set(f"go/{number}", "")
    store.wait([f"go/{number}"])


class _Counting:
    """A rendezvous store that counts the messages to it: the main thread's, and all."""

    def __init__(self, store: Any, counts: dict[str, int]) -> None:
        self._store, self._counts = store, counts

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        function = getattr(self._store, verb)

        def call(*args: Any) -> Any:
            self._counts["all"] += 1
            self._counts["main"] += threading.current_thread() is threading.main_thread()
            return function(*args)

        return call


@contextmanager
def _counted() -> Iterator[dict[str, int]]:
    """Count the messages of all clients that are made while inside."""
    counts, whole = {"main": 0, "all": 0}, Client.__init__

    def made(self: Client, *args: Any) -> None:
        whole(self, *args)
        self._store = _Counting(self._store, counts)

    with mock.patch.object(Client, "__init__", made):
        yield counts


def _costs(ranks: int, rounds: int, host_cpu_s: float, folder: Path) -> Costs:
    seen = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    nodes = range(-(-ranks // ON_A_NODE))
    reads = [sum(one["reads"] for one in seen[n * ON_A_NODE : (n + 1) * ON_A_NODE]) for n in nodes]
    came = [_came(rank, folder) for rank in range(ranks)]
    ways = [_way(rank, number, came) for rank in range(ranks) for number in range(len(came[rank]))]
    return Costs(
        ranks,
        [max(one["wall"][number] for one in seen) for number in range(rounds)],
        [one["calls"] / rounds for one in seen],
        sum(one["cpu"] for one in seen) / rounds,
        host_cpu_s / sum(one["all calls"] for one in seen),
        [count / rounds for count in reads],
        max(map(len, ways), default=0),
        min((event["seconds"] for events in came for event in events), default=0.0),
    )


def _came(rank: int, folder: Path) -> list[dict[str, Any]]:
    """What came to a rank by the way of peers, in each round."""
    lines = (folder / f"rank{rank}.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "shipped"]


def _way(rank: int, number: int, came: list[list[dict[str, Any]]]) -> list[int]:
    """From whom a rank has the bytes of a round, from whom that one, and so on."""
    way = [rank]
    while came[way[-1]] and len(way) <= len(came):
        way.append(came[way[-1]][number]["from_ranks"][-1])
    return way[1:]
