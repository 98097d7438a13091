"""Small jobs of real processes: a server and N ranks, forked from one that has torch loaded.

Run as a script this reads one job a line and answers with one line; `Jobs` is the test's end of it.
The forking process has neither store nor thread. The server is never forked: connections to a
forked one stall for 5 s now and then. It serves many jobs, each below a prefix of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The store's client looks its own address up in the DNS, and a busy name server may not answer:
# RES_OPTIONS makes that 1 s instead of 5 s, and the limits leave room for it.
QUICK = "beat=0.1,lease=1.5,dead=3,grace=1,hard=1.5,store=3,start=20,cause=0.6,ack=1,say=1"


@dataclass
class Ended:
    """What became of a job: by rank the exit code, what it printed, and when it ended (seconds)."""

    codes: list[int]
    errors: list[str]
    seconds: list[float]
    results: list[Any]
    events: list[dict[str, Any]]

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the journal's events of one name."""
        return [row for row in self.events if row["event"] == event]


class Jobs:
    """Starts jobs in a process that has torch loaded already."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fleet_jobs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"},
            text=True,
        )

    def run(
        self,
        scenario: str,
        folder: Path,
        world: int = 2,
        timing: str = "",
        nodes: int = 1,
        limit: float = 30,
        **options: Any,
    ) -> Ended:
        """Run a function of `tests.fleet_scenarios` on every rank and return what became of it."""
        folder.mkdir(parents=True, exist_ok=True)
        job = {
            "scenario": scenario,
            "folder": str(folder),
            "world": world,
            "timing": ",".join(filter(None, [QUICK, timing])),
            "nodes": nodes,
            "limit": limit,
            "options": options,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        lines = (folder / "journal").read_text().splitlines()
        errors = [(folder / f"stderr{rank}").read_text() for rank in range(world)]
        results = [_json(folder / f"result{rank}") for rank in range(world)]
        return Ended(
            answer["codes"], errors, answer["seconds"], results, [json.loads(x) for x in lines]
        )

    def close(self) -> None:
        """End the forking process."""
        self._process.communicate(timeout=20)


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


# ---- the forking process ---------------------------------------------------------------------


@dataclass
class Rank:
    """What a scenario gets: its fleet, its place and the job's options."""

    fleet: Any
    store: Any
    rank: int
    world: int
    folder: Path
    server: int
    prefix: str
    options: dict[str, Any]

    def result(self, value: Any) -> None:
        """Leave a JSON value for the test to read."""
        (self.folder / f"result{self.rank}").write_text(json.dumps(value))

    def strike(self) -> None:
        """Write down the moment from which the test counts."""
        (self.folder / "strike").write_text(str(time.time()))


def _fork(job: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            job()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


_SERVE = """
import signal
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
signal.pause()
"""


class Server:
    """A store's host in a process of its own, started anew after a job has killed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    def start(self) -> tuple[int, int]:
        """Return the port and the process of a server that runs."""
        if self._process is None:
            arguments = [sys.executable, "-c", _SERVE]
            self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
            assert self._process.stdout is not None
            self._port = int(self._process.stdout.readline())
        return self._port, self._process.pid

    def mend(self) -> None:
        """Let a stopped server go on; forget one that was killed."""
        assert self._process is not None
        try:
            self._process.wait(0.1)
            self._process = None
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _be_rank(job: dict[str, Any], rank: int, port: int, server: int) -> None:
    from torch.distributed import TCPStore

    from lockstep.fleet import Fleet, install_hooks
    from lockstep.journal import Journal

    folder, world, nodes = Path(job["folder"]), job["world"], job["nodes"]
    errors = os.open(folder / f"stderr{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(errors, 2)
    os.dup2(errors, 1)
    os.environ["LOCKSTEP_TIMING"] = job["timing"]
    store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    a_node = world // nodes
    fleet = Fleet(
        store,
        rank,
        world,
        job["prefix"],
        node=rank // a_node,
        local_rank=rank % a_node,
        nodes=nodes,
        journal=Journal(folder / "journal", rank),
    )
    install_hooks(fleet)
    scenario = getattr(importlib.import_module("tests.fleet_scenarios"), job["scenario"])
    try:
        scenario(Rank(fleet, store, rank, world, folder, server, job["prefix"], job["options"]))
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        raise SystemExit(1) from None
    finally:
        fleet.close()


def _collect(pids: list[int], limit: float, folder: Path) -> dict[str, Any]:
    codes: dict[int, int] = {}
    ends: dict[int, float] = {}
    begin = time.time()
    while len(codes) < len(pids) and time.time() - begin < limit:
        for pid in pids:
            if pid not in codes and (status := os.waitpid(pid, os.WNOHANG))[0]:
                codes[pid], ends[pid] = os.waitstatus_to_exitcode(status[1]), time.time()
        alive = [pid for pid in pids if pid not in codes]
        if codes and alive and all(_stopped(pid) for pid in alive):
            break
        time.sleep(0.02)
    for pid in pids:
        if pid not in codes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    strike = folder / "strike"
    start = float(strike.read_text()) if strike.exists() else begin
    return {
        "codes": [codes.get(pid, 999) for pid in pids],
        "seconds": [ends.get(pid, time.time()) - start for pid in pids],
    }


def _stopped(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in "tT"


def _main() -> None:
    import torch.distributed

    import tests.fleet_scenarios  # noqa: F401

    torch.set_num_threads(1)
    answers = os.dup(1)
    host = Server()
    for number, line in enumerate(sys.stdin):
        job = {**json.loads(line), "prefix": f"job{number}"}
        port, server = host.start()
        ranks = [
            _fork(lambda: _be_rank(job, rank, port, server))  # noqa: B023
            for rank in range(job["world"])
        ]
        ended = _collect(ranks, job["limit"], Path(job["folder"]))
        host.mend()
        os.write(answers, (json.dumps(ended) + "\n").encode())
    host.end()


if __name__ == "__main__":
    _main()
