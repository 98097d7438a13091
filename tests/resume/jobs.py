"""Starts `lockstep train llama3:debug`, kills a rank of it, and reads what it left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from lockstep.journal import read_journals
from lockstep.report.job import end
from lockstep.trainer.metrics import read
from lockstep.trainer.saved import newest

LIMIT_S = 300.0
SMALL = ["--data.batch", "8", "--data.sequence", "32", "--metrics.every", "1"]


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        folder: of the training, its journals and what it printed.
        store: of artifacts, which all of them share.
        words: more of the command line.
    """

    folder: Path
    store: Path
    ranks: int
    words: tuple[str, ...] = ()

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """The command, running while inside; nothing of it is left afterwards."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "lockstep", "train", "llama3:debug", *SMALL, *self.words]
        where = ["--folder", str(self.folder), "--nproc-per-node", str(self.ranks)]
        env = {
            **os.environ,
            "LOCKSTEP_STORE": str(self.store),
            "LOCKSTEP_RUNS": str(self.folder / "runs"),
            "LOCKSTEP_TIMING": "beat=0.1,ack=1,cause=0.5",
            "OMP_NUM_THREADS": "1",
            "RES_OPTIONS": "timeout:1 attempts:1",  # stores look their own address up
        }
        with (self.folder / "printed").open("ab") as out:
            process = subprocess.Popen(
                [*command, *where], env=env, stdout=out, stderr=out, start_new_session=True
            )
            try:
                yield process
            finally:
                end(process)

    def run(self) -> int:
        """Train to the end; returns the exit code."""
        with self.started() as process:
            return process.wait(timeout=LIMIT_S)

    def killed(self, draw: random.Random) -> tuple[int, int, int]:
        """Train some steps and kill a rank; returns its last step, the rank and the exit code."""
        before, whole = self._file(), newest(self.folder / "checkpoints")[0]
        target = (whole.step if whole else 0) + draw.randint(1, 4)
        rank = draw.randrange(self.ranks)
        with self.started() as process:
            until = time.monotonic() + LIMIT_S
            # A start writes its metrics anew: before that, the lines are of the one before.
            while self._file() in (None, before) or self.step() < target:
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"not killed, for it ended before:\n{self.printed()}")
                time.sleep(0.01)
            os.kill(self._pids()[rank], signal.SIGKILL)
            return self.step(), rank, process.wait(timeout=LIMIT_S)

    def _file(self) -> int | None:
        path = self.folder / "metrics.jsonl"
        return path.stat().st_ino if path.exists() else None

    def _pids(self) -> dict[int, int]:
        events = read_journals(self.folder / "runs" / "latest")
        return {event["rank"]: event["pid"] for event in events if event["event"] == "start"}

    def printed(self) -> str:
        """Return the end of what all starts have printed."""
        return (self.folder / "printed").read_text(errors="replace")[-6000:]

    def step(self) -> int:
        """Return the last step that was told."""
        return max((row["step"] for row in read(self.folder / "metrics.jsonl")), default=0)

    def told(self) -> dict[int, tuple[float, float, float]]:
        """Return each step's loss, gradient norm and learning rate."""
        rows = read(self.folder / "metrics.jsonl")
        return {row["step"]: (row["loss"], row["grad_norm"], row["lr"]) for row in rows}

    def state(self) -> dict[str, torch.Tensor]:
        """Return every tensor of the newest checkpoint, whole."""
        found, _ = newest(self.folder / "checkpoints")
        if found is None:
            raise SystemExit(f"no checkpoint was left:\n{self.printed()}")
        file = self.folder / "whole.pt"
        dcp_to_torch_save(found.path, file)
        return torch.load(file)
