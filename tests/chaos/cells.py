"""What is struck, where and how; the special cases; and in what time a job must be over."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from lockstep.fleet.timing import Timing

TARGETS = ("builder", "waiter", "store", "two jobs")
PHASES = (
    *("before lease", "capture", "lowering", "write"),
    *("rename", "ship", "load", "first step"),
)
ACTIONS = ("KILL", "STOP", "exception")
BUILDING = PHASES[1:5]  # phases of the builder alone
SPECIALS = {
    "all well": "all ranks train; nothing is said of a fault",
    "half-warm store": "one node has the artifact: nobody builds, it is shipped to the other",
    "read-only store": "one error in words on every rank, before anything is built",
    "full store": "nothing is kept, which is told; all ranks train from memory",
    "slow rank": "the others say for whom they wait; all ranks train",
    "slow builder": "its heart beats, so that nobody takes over; all ranks train",
    "hung compiler": "its heart beats, and the waiters' limit ends it by name",
    "out of memory": "the builder gives the build to another rank; all ranks train",
    "caught and slept": "the rank that swallows its error is named, and every process is ended",
}
TIMING = (
    "beat=0.2,lease=2,dead=5,grace=2,hard=2,store=5,start=60,build=60,cause=1.5,ack=1,say=1,"
    "finish=6"
)
HUNG = "build=25"  # with the hung compiler: more than all before it may take
SLOW = 6.0  # seconds that slow ones take: more than a lease, and than the silence of a dead rank
BUILD = 60.0  # seconds that a job that is well may take to build, and to train, on a busy machine
PROCESS = 6.0  # seconds that processes on a busy machine may take to see, to say and to end


@dataclass(frozen=True)
class Cell:
    """One job of four ranks, and what happens to it.

    Args:
        target: what is struck: a rank that builds or waits, the host of the rendezvous store, or
            the builder of one of two jobs that want the same artifact.
        phase: where the builder is then; of phases that all ranks pass, where the waiter is.
        action: a signal, or an exception; "exception" ends the store's host by a SIGTERM, which
            torchrun's agent raises as one.
        special: one of `SPECIALS`, in place of all others.
    """

    target: str = ""
    phase: str = ""
    action: str = ""
    special: str = ""

    def __str__(self) -> str:
        return self.special or f"{self.target}, {self.phase}, {self.action}"

    @property
    def builder(self) -> int:
        """The process that is to build: on the node without the store, but for a waiter's sake."""
        return 2 if self.target in ("builder", "store") else 0

    @property
    def struck(self) -> int | None:
        """The process that is struck; None: an agent, or nobody."""
        by_target = {"builder": 2, "waiter": 3, "two jobs": 0}
        by_special = {"caught and slept": 2, "hung compiler": 0, "slow rank": 3}
        return by_target.get(self.target, by_special.get(self.special))

    @property
    def own_stores(self) -> bool:
        """Whether each node has a store of its own, so that bytes must travel."""
        shipped = self.phase == "ship" and self.target != "two jobs"
        return shipped or self.special == "half-warm store"

    @property
    def timing(self) -> str:
        """The limits of the cell's jobs."""
        return f"{TIMING},{HUNG}" if self.special == "hung compiler" else TIMING

    def limit_of(self, process: int) -> float:
        """Seconds from the strike after which a process must be gone; a job that is well trains."""
        return BUILD if self.target == "two jobs" and process > 1 else self.limit_s()

    def limit_s(self) -> float:
        """Seconds from the strike after which no process of the struck job may be left."""
        t = Timing.for_world(4, {"LOCKSTEP_TIMING": self.timing})
        end = t.grace + t.hard
        if self.special == "hung compiler":
            return t.build + 4 * t.beat + end + PROCESS
        if self.special and self.special not in ("caught and slept", "read-only store"):
            return BUILD  # they train
        if self.target == "store":
            found = t.store + 1 if self.action == "STOP" else t.dead
            return found + t.ack + end + PROCESS
        if self.action in ("KILL", "STOP"):
            takes_over = t.finish if self.phase in PHASES[:5] else 0.0
            return t.dead + 6 * t.beat + takes_over + end + PROCESS
        return 4 * t.beat + t.cause + t.ack + end + PROCESS


def matrix() -> list[Cell]:
    """Every combination once."""
    return [Cell(*one) for one in itertools.product(TARGETS, PHASES, ACTIONS)]


def specials() -> list[Cell]:
    """The special cases."""
    return [Cell(special=name) for name in SPECIALS]
