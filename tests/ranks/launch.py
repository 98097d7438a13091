"""Start a script on real ranks under torchrun, and see what became of each.

`Torchrun` is the test's end: a process that has torch loaded forks one torchrun a launch, whose
ranks are fresh interpreters. `Here` is the script's end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QUICK = "beat=0.1,lease=5,dead=20,ack=2,say=2"
_FOLDER = "LAUNCH_FOLDER"
_FAILED = re.compile(r"rank\s+: (\d+) .*?exitcode\s+: (-?\d+)", re.DOTALL)


@dataclass
class Ended:
    """What became of a launch.

    Args:
        code: torchrun's exit code.
        codes: exit code of each rank, as torchrun saw it; -15 where torchrun ended it.
        texts: by rank what it printed, stdout then stderr.
        gone: seconds from the strike (else from the start) until no rank's process was left.
        told: the same from the first report of a fault; None where none was reported.
        results: by rank the JSON value that it left; None where it left none.
        events: the journals' lines, of all ranks and runs below the folder, by time.
    """

    code: int
    codes: dict[int, int]
    texts: list[str]
    gone: float
    told: float | None
    results: list[Any]
    events: list[dict[str, Any]] = field(repr=False)
    torchrun: str = field(repr=False)

    def of(self, event: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return the journal's events of one name, with these fields."""
        rows = [row for row in self.events if row["event"] == event]
        return [row for row in rows if all(row.get(k) == v for k, v in wanted.items())]

    def report(self) -> str:
        """Return everything that was printed, for an assertion's message."""
        texts = [f"---- rank {i}\n{text}" for i, text in enumerate(self.texts)]
        return "\n".join([f"exit codes {self.code} {self.codes}", *texts, self.torchrun[-4000:]])


class Torchrun:
    """Launches scripts under torchrun; `with Torchrun() as torchrun: torchrun.run(...)`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ranks.launch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=30)

    def run(
        self,
        module: str,
        *args: str,
        folder: Path,
        world: int = 2,
        limit: float = 90.0,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> Ended:
        """Run `python -m module args` on `world` ranks and wait until all processes are gone.

        Args:
            folder: for the store, the journals and what is printed; made where missing.
            limit: seconds after which everything is ended and an error raised.
            env: for the ranks, over the defaults: a store and runs in `folder`, quick timing.
            options: torchrun's own, beside the defaults.

        Raises:
            TimeoutError: with everything that was printed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        logs = folder / "logs"
        job = {
            "argv": [
                "torchrun", "--standalone", "--nproc-per-node", str(world),
                "--log-dir", str(logs), "--redirects", "3", *options, "-m", module, *args,
            ],
            "out": str(folder / "torchrun"),
            "env": {
                "OMP_NUM_THREADS": "1",
                "RES_OPTIONS": "timeout:1 attempts:1",  # stores look their own address up
                "LOCKSTEP_STORE": str(folder / "store"),
                "LOCKSTEP_RUNS": str(folder / "runs"),
                "LOCKSTEP_TIMING": QUICK,
                _FOLDER: str(folder),
                **(env or {}),
            },
        }  # fmt: skip
        begin = time.time()
        self._ask({"start": job})
        code, end = self._wait(folder, world, begin + limit)
        ended = _ended(folder, world, code, begin, end)
        if code is None:
            raise TimeoutError(f"{module} {args} ran over {limit} s\n{ended.report()}")
        return ended

    def _wait(self, folder: Path, world: int, until: float) -> tuple[int | None, float]:
        while time.time() < until:
            code = self._ask({"poll": True})
            if code is not None and not _alive(folder, world):
                return code, time.time()
            time.sleep(0.05)
        self._ask({"end": True})
        for pid in _alive(folder, world):
            os.kill(pid, signal.SIGKILL)
        return None, time.time()

    def _ask(self, message: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def _alive(folder: Path, world: int) -> list[int]:
    """The ranks' processes that are left, as far as they got to say who they are."""
    found = []
    for rank in range(world):
        path = folder / f"pid{rank}"
        pid = int(path.read_text() or 0) if path.exists() else 0
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if pid and state != "Z":
            found.append(pid)
    return found


def _ended(folder: Path, world: int, code: int | None, begin: float, end: float) -> Ended:
    torchrun = (folder / "torchrun").read_text()
    strike = folder / "strike"
    start = float(strike.read_text()) if strike.exists() else begin
    lines = [x for path in folder.glob("runs/2*/*.jsonl") for x in path.read_text().splitlines()]
    events = sorted((json.loads(line) for line in lines), key=lambda row: row["time"])
    faults = [row["time"] for row in events if row["event"] in ("fault", "fault_seen")]
    return Ended(
        code=-1 if code is None else code,
        codes={int(rank): int(value) for rank, value in _FAILED.findall(torchrun)},
        texts=[_printed(folder / "logs", rank) for rank in range(world)],
        gone=end - start,
        told=end - faults[0] if faults else None,
        results=[_result(folder, rank) for rank in range(world)],
        events=events,
        torchrun=torchrun,
    )


def _printed(logs: Path, rank: int) -> str:
    latest = sorted(logs.glob("*/attempt_0"), key=lambda path: path.stat().st_mtime)[-1:]
    names = ("stdout.log", "stderr.log")
    files = [folder / str(rank) / name for folder in latest for name in names]
    return "".join(file.read_text(errors="replace") for file in files if file.exists())


def _result(folder: Path, rank: int) -> Any:
    path = folder / f"result{rank}"
    return json.loads(path.read_text()) if path.exists() else None


class Here:
    """A script's place in its launch."""

    def __init__(self) -> None:
        self.rank, self.folder = int(os.environ.get("RANK", "0")), Path(os.environ[_FOLDER])
        (self.folder / f"result{self.rank}").unlink(missing_ok=True)
        (self.folder / f"pid{self.rank}").write_text(str(os.getpid()))

    def strike(self) -> None:
        """Write down the moment from which the test counts: right before something fails."""
        (self.folder / "strike").write_text(str(time.time()))

    def result(self, value: Any) -> None:
        """Leave a JSON value for the test to read."""
        (self.folder / f"result{self.rank}").write_text(json.dumps(value))


# ---- the forking process ---------------------------------------------------------------------


def fork_main(main: Callable[[], None], argv: list[str], env: dict[str, str], out: Path) -> int:
    """Run `main` as a program of its own in a fork, which has all imported; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.chdir(ROOT)
        target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(target, 1)
        os.dup2(target, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(env)
        sys.argv = argv
        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _poll(pid: int, codes: dict[int, int]) -> int | None:
    if pid not in codes:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes.get(pid)


def _end(pid: int, codes: dict[int, int]) -> None:
    """Ask torchrun to end its ranks and itself; insist after ten seconds."""
    os.kill(pid, signal.SIGTERM)
    until = time.time() + 10
    while _poll(pid, codes) is None and time.time() < until:
        time.sleep(0.05)
    if _poll(pid, codes) is None:
        os.killpg(pid, signal.SIGKILL)


def _serve() -> None:
    from torch.distributed.run import main

    codes: dict[int, int] = {}
    pid = 0
    for line in sys.stdin:
        message = json.loads(line)
        answer = None
        if "start" in message:
            pid = fork_main(main, **message["start"])
        elif "poll" in message:
            answer = _poll(pid, codes)
        else:
            _end(pid, codes)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
