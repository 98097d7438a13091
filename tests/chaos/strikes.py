"""A rank's end of a cell: it sees where its job is, and strikes.

Nothing of this is in the product: functions that each first call goes through are wrapped here.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.cells import BUILD, BUILDING, PHASES, SLOW, Cell

CELL, FOLDER, JOB = "CHAOS_CELL", "CHAOS_FOLDER", "CHAOS_JOB"
INJECTED = "chaos: injected"
DWELL = 0.7  # seconds that a builder stays in the phase in which somebody else is struck
OWN_STRIKES = ("slow rank", "slow builder", "hung compiler", "caught and slept")
SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "exception": signal.SIGTERM}


@dataclass
class Strikes:
    """One process of a cell.

    Args:
        process: its number in the cell, from 0: its rank, and of the second of two jobs 2 more.
        folder: where processes leave what the judge reads.
    """

    cell: Cell
    process: int
    folder: Path
    seen: set[str] = field(default_factory=set)

    @classmethod
    def here(cls) -> Strikes:
        """This process', as its environment says."""
        folder = Path(os.environ[FOLDER])
        process = int(os.environ["RANK"]) + 2 * int(os.environ[JOB])
        (folder / f"pid{process}").write_text(str(os.getpid()))
        return cls(Cell(**json.loads(os.environ[CELL])), process, folder)

    @property
    def is_struck(self) -> bool:
        """Whether this process is the one that is struck."""
        return self.process == self.cell.struck

    @property
    def builds(self) -> bool:
        """Whether this process is the one that is to build."""
        return self.process == self.cell.builder

    def result(self, value: Any) -> None:
        """Leave a JSON value for the judge."""
        (self.folder / f"result{self.process}").write_text(json.dumps(value))

    def note(self) -> None:
        """Write down the moment from which the judge counts."""
        # By the system's own calls: a strike may come upon a capture, which refuses written files.
        file = os.open(self.folder / "strike", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(file, str(time.time()).encode())
        os.close(file)

    # -- where the job is

    def install(self) -> None:
        """Wrap what a job goes through, and lie in wait where another process is waited for."""
        from lockstep.fleet import obtain
        from lockstep.run import admit, step
        from lockstep.run.session import session
        from lockstep.run.variant import Variant

        def building() -> bool:
            return session().fleet.state.building

        _choose_builder(obtain, self.cell.builder)
        self._before(obtain.Lease, "open", "before lease")
        self._before(admit, "capture_call", "capture", building)
        self._before(admit, "lower", "lowering", building)
        self._before(obtain, "Shipping", "ship")
        self._before(step, "load", "load")
        self._before(Variant, "run", "first step")
        self._watch_files()
        if self.cell.target == "waiter" and self.is_struck and self.cell.phase in BUILDING:
            signal.signal(signal.SIGUSR1, _interrupted)
            threading.Thread(target=self._lie_in_wait, daemon=True).start()

    def _before(
        self, owner: Any, name: str, phase: str, where: Callable[[], bool] = lambda: True
    ) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if where():
                self.reached(phase)
            return original(*args, **kwargs)

        setattr(owner, name, wrapped)

    def _watch_files(self) -> None:
        """A write is struck with half of its bytes in the file, a rename right before it."""
        sync, rename = os.fsync, os.rename
        store = Path(os.environ["LOCKSTEP_STORE"]).resolve()

        def synced(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            if path.parent == store:
                data = path.read_bytes()
                os.ftruncate(descriptor, len(data) // 2)
                self.reached("write")
                path.write_bytes(data)
            sync(file)

        def renamed(source: Any, target: Any, **more: Any) -> None:
            if Path(target).resolve().parent == store:
                self.reached("rename")
            rename(source, target, **more)

        os.fsync, os.rename = synced, renamed  # type: ignore[assignment]

    def let_other_begin(self) -> None:
        """In the second of two jobs: wait until the first one has the build that is struck."""
        later = self.cell.target == "two jobs" and self.process > 1
        until = time.monotonic() + BUILD
        while later and not (self.folder / "begun").exists() and time.monotonic() < until:
            time.sleep(0.05)

    # -- what happens there

    def reached(self, phase: str) -> None:
        """This process has come to a phase, for the first time."""
        if phase in self.seen:
            return
        self.seen.add(phase)
        if self.builds and phase == ("capture" if self.cell.phase != PHASES[0] else PHASES[0]):
            (self.folder / "begun").touch()
        if self.cell.special:
            self._special(phase)
        elif phase == self.cell.phase:
            own = self.cell.target != "waiter" or phase not in BUILDING
            if self.is_struck and own:
                self._strike()
            elif self.builds and (self.cell.target == "store" or not own):
                self._while_others_are_struck(phase)

    def _strike(self) -> None:
        self.note()
        if self.cell.action == "exception":
            raise ValueError(INJECTED)
        os.kill(os.getpid(), SIGNALS[self.cell.action])

    def _while_others_are_struck(self, phase: str) -> None:
        if self.cell.target == "store":
            self.note()
            os.kill(int((self.folder / "host").read_text()), SIGNALS[self.cell.action])
        (self.folder / "reached").write_text(phase)
        time.sleep(DWELL)

    def _lie_in_wait(self) -> None:
        while not (self.folder / "reached").exists():
            time.sleep(0.02)
        self.note()
        if self.cell.action == "exception":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        else:
            os.kill(os.getpid(), SIGNALS[self.cell.action])

    def _special(self, phase: str) -> None:
        special = self.cell.special
        if self.builds and not self.seen - {phase} and special not in OWN_STRIKES:
            self.note()
        if special == "caught and slept" and phase == "first step" and self.is_struck:
            self.note()
            raise ValueError(INJECTED)
        if special in ("slow builder", "hung compiler") and phase == "lowering" and self.builds:
            self.note()
            time.sleep(SLOW if special == "slow builder" else 600)
        if special == "out of memory" and phase == "lowering" and self.builds:
            raise MemoryError(INJECTED)


def _interrupted(number: int, frame: Any) -> None:
    raise ValueError(INJECTED)


def _choose_builder(obtain: Any, builder: int) -> None:
    """Let a rank of choice be the first that may build; the others follow in their order."""
    judge = obtain.judge_vote

    def judged(*args: Any) -> dict[str, Any]:
        verdict: dict[str, Any] = judge(*args)
        if "candidates" in verdict:
            verdict["candidates"].sort(key=lambda rank: rank != builder)
        return verdict

    obtain.judge_vote = judged
