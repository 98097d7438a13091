"""Run one cell: two torchrun agents of two ranks each, and what became of every process.

The agents are forked from a process that has torchrun loaded and no thread; ranks are fresh
interpreters, started by torchrun as always.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.cells import Cell
from tests.chaos.strikes import CELL, FOLDER, JOB
from tests.ranks.launch import fork_main

AT_ONCE = 2
ROOT = Path(__file__).parents[2]
START_S = 150.0  # until the strike: a loaded machine starts slowly
PROCESSES = range(4)
_CLOSED = re.compile(r"Sending process (\d+) closing signal")


@dataclass
class Seen:
    """What became of a cell.

    Args:
        struck: whether it came to the strike.
        ends: by process, seconds from the strike to its end; those that were still there at the
            limit, and had to be killed, are missing.
        texts: by process what it printed.
        by_agent: processes that their own agent ended.
        trained: processes that trained to the end.
        files: by artifact in a store what is wrong with it; None: nothing.
        left: names of temporary files in the stores.
        events: the journals' lines.
        impossible: why the cell cannot happen on this machine.
    """

    struck: bool = False
    ends: dict[int, float] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    by_agent: set[int] = field(default_factory=set)
    trained: set[int] = field(default_factory=set)
    files: dict[str, str | None] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    agents: str = ""
    impossible: str = ""


def preload() -> None:
    """In a process of the pool: what every agent needs, before it is forked."""
    import torch.distributed.run  # noqa: F401


def pool(at_once: int = AT_ONCE) -> ProcessPoolExecutor:
    """Processes that run a cell each, at most so many at a time."""
    spawned = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(at_once, spawned, preload)


def run(cell: Cell, folder: Path, warm: dict[str, bytes] | None = None) -> Seen:
    """Run a cell in an empty folder.

    Args:
        warm: artifacts by name, which the half-warm store's second node has.
    """
    folder.mkdir(parents=True)
    (folder / "store1").mkdir(mode=0o700)
    for name, data in (warm or {}).items() if cell.special == "half-warm store" else ():
        _private(folder / "store1" / name, data)
    with _store(cell, folder) as impossible:
        if impossible:
            return Seen(impossible=impossible)
        return Job(cell, folder).run()


class Job:
    """One run."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self._cell, self._folder, self._seen = cell, folder, Seen()
        self._agents: list[int] = []

    def run(self) -> Seen:
        """Start it, wait for the strike, and then as long as it may take."""
        ports = [_free_port() for _ in range(2)]
        for node in range(2):
            self._agents.append(self._start(node, ports))
            (self._folder / "host").write_text(str(self._agents[0]))
        try:
            struck = self._watch()
        finally:
            self._end()
        return self._read(struck)

    def _start(self, node: int, ports: list[int]) -> int:
        apart = self._cell.target == "two jobs"
        port, nodes = (ports[node], 1) if apart else (ports[0], 2)
        host = "true" if apart or node == 0 else "false"
        argv = [
            "torchrun", "--nnodes", str(nodes), "--nproc-per-node", "2", "--rdzv-backend", "c10d",
            "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", f"is_host={host}",
            "--rdzv-id", f"job{node if apart else 0}", "--local-addr", "127.0.0.1",
            "--log-dir", str(self._folder / f"logs{node}"), "--redirects", "3",
            "-m", "tests.chaos.rank",
        ]  # fmt: skip
        env = {
            "OMP_NUM_THREADS": "1",
            "RES_OPTIONS": "timeout:1 attempts:1",  # stores look their own address up
            "LOCKSTEP_STORE": str(_store_of(self._cell, self._folder, node)),
            "LOCKSTEP_RUNS": str(self._folder / f"runs{node if apart else 0}"),
            "LOCKSTEP_TIMING": self._cell.timing,
            CELL: json.dumps(dataclasses.asdict(self._cell)),
            FOLDER: str(self._folder),
            JOB: str(node if apart else 0),
        }
        return _fork_agent(argv, env, self._folder / f"agent{node}")

    def _watch(self) -> float:
        """Note each process' end; return the time of the strike, 0 where there was none."""
        begin, struck = time.time(), 0.0
        limit = max(self._cell.limit_of(process) for process in PROCESSES)
        while True:
            time.sleep(0.05)
            now = time.time()
            if not struck and (self._folder / "strike").exists():
                struck = self._at()
            pids = self._pids()
            for process, pid in pids.items():
                if process not in self._seen.ends and _state(pid) in ("", "Z"):
                    self._seen.ends[process] = now
            self._end_stopped(pids)
            agents = [pid for pid in self._agents if _state(pid) not in ("", "Z")]
            over = len(self._seen.ends) == 4 or (not agents and len(self._seen.ends) == len(pids))
            if over or now > (struck + limit if struck else begin + START_S):
                return self._at()

    def _at(self) -> float:
        with suppress(FileNotFoundError, ValueError):  # the last word: some are struck late
            return float((self._folder / "strike").read_text())
        return 0.0

    def _end_stopped(self, pids: dict[int, int]) -> None:
        """End a struck process that is stopped, once it alone is left: torchrun takes 30 s more."""
        left = [process for process in pids if process not in self._seen.ends]
        job = [p for p in left if self._cell.target != "two jobs" or p < 2]
        if job == [self._cell.struck] and _state(pids[job[0]]) == "T":
            os.kill(pids[job[0]], signal.SIGKILL)

    def _pids(self) -> dict[int, int]:
        found = {}
        for process in PROCESSES:
            with suppress(FileNotFoundError, ValueError):
                found[process] = int((self._folder / f"pid{process}").read_text())
        return found

    def _end(self) -> None:
        """End whatever is left: first the agents, which would start nothing anew but tell much."""
        time.sleep(0.1)  # agents write what they have seen
        for pid in [*self._agents, *self._pids().values()]:
            if _state(pid) not in ("", "Z"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for pid in self._agents:
            os.waitpid(pid, 0)

    def _read(self, struck: float) -> Seen:
        seen, pids = self._seen, self._pids()
        seen.struck = bool(struck)
        seen.ends = {p: max(0.0, round(end - struck, 1)) for p, end in seen.ends.items()}
        seen.agents = "".join(
            (self._folder / f"agent{node}").read_text(errors="replace") for node in range(2)
        )
        closed = {int(pid) for pid in _CLOSED.findall(seen.agents)}
        seen.by_agent = {p for p, pid in pids.items() if pid in closed}
        seen.texts = {p: self._printed(p) for p in PROCESSES}
        seen.trained = {p for p in PROCESSES if (self._folder / f"result{p}").exists()}
        for store in self._folder.glob("store*"):
            for path in sorted(store.iterdir()):
                if path.suffix == ".lockstep":
                    seen.files[f"{store.name}/{path.name}"] = _wrong(path)
                elif path.suffix == ".tmp":
                    seen.left.append(path.name)
        lines = [
            x for p in self._folder.glob("runs*/2*/*.jsonl") for x in p.read_text().split("\n")
        ]
        seen.events = [json.loads(line) for line in lines if line.startswith("{")]
        return seen

    def _printed(self, process: int) -> str:
        node, local = divmod(process, 2)
        files = self._folder.glob(f"logs{node}/*/attempt_0/{local}/*.log")
        return "".join(file.read_text(errors="replace") for file in sorted(files))


def _wrong(path: Path) -> str | None:
    from lockstep.build.inspect import inspect
    from lockstep.errors import LockstepError

    try:
        inspect(path)
    except LockstepError as error:
        return str(error)
    return None


def _state(pid: int) -> str:
    """A process' state as /proc has it; "" where it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


def _private(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)


def _fork_agent(argv: list[str], env: dict[str, str], out: Path) -> int:
    from torch.distributed.run import main

    return fork_main(main, argv, env, out)


# ---- stores that take nothing ----------------------------------------------------------------


def _store_of(cell: Cell, folder: Path, node: int) -> Path:
    return folder / (f"store{node}" if cell.own_stores else "store0")


@contextmanager
def _store(cell: Cell, folder: Path) -> Iterator[str]:
    """The first node's store, of a kind that the cell asks for; or why there can be none."""
    store, options = folder / "store0", ""
    store.mkdir(mode=0o700)
    if cell.special == "full store":
        options = "size=4k,mode=0700"  # less than an artifact
    elif cell.special == "read-only store":
        options = "size=8k,mode=0700,ro"
    mounted = bool(options) and _mount(store, options)
    try:
        if options and not mounted and (cell.special == "full store" or os.geteuid() == 0):
            yield "this user may mount no small file system"
            return
        if options and not mounted:
            store.chmod(0o500)
        yield ""
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(store)], check=False)


def _mount(path: Path, options: str) -> bool:
    if shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(path)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
