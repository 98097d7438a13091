"""What the threads of one rank share."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lockstep.fleet.faults import Fault
from lockstep.fleet.say import say
from lockstep.fleet.scope import Scope
from lockstep.fleet.timing import Timing
from lockstep.journal import Journal


@dataclass
class State:
    """A rank's view of itself and of the fault; each field has one writer.

    Args:
        rank, world, local_rank: this process's place.
        timing: the limits.
        journal: where events go.
        store_at: the address of the rendezvous store's host.
        votes: by scope, in how many this rank took part.
        scopes: those that this rank is in, by name.
    """

    rank: int
    world: int
    local_rank: int
    timing: Timing
    journal: Journal
    store_at: str = ""
    fault: Fault | None = None
    faulted: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    wake: threading.Event = field(default_factory=threading.Event)
    doing: list[str] = field(default_factory=list)
    waiting: str = ""
    building: bool = False
    trips: int = 0
    calls: int = 0
    votes: dict[str, int] = field(default_factory=dict)
    scopes: dict[str, Scope] = field(default_factory=dict)
    entered: dict[str, tuple[int, str]] = field(default_factory=dict)
    times: dict[tuple[str, str], int] = field(default_factory=dict)
    contracts: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    posts: deque[tuple[Scope, str, str]] = field(default_factory=deque)

    def next_vote(self, scope: Scope) -> str:
        """Count a vote of a scope's ranks; return its topic."""
        self.votes[scope.name] = self.votes.get(scope.name, 0) + 1
        self.scopes = {**self.scopes, scope.name: scope}  # last: the watcher goes through them
        return scope.key(f"vote/{self.votes[scope.name]}")

    def learn(self, fault: Fault) -> None:
        """Take in the fault; the first one stays. Wakes whoever waits."""
        if self.fault is None:
            self.fault = fault
        self.faulted.set()
        self.wake.set()

    def raise_fault(self) -> None:
        """Raise the fault's error if there is one."""
        if self.fault is not None:
            raise self.fault.error()

    @contextmanager
    def needing(self, text: str) -> Iterator[None]:
        """Say in `waiting` for what the main thread needs the store; "" is for nothing."""
        before, self.waiting = self.waiting, text
        try:
            yield
        finally:
            self.waiting = before

    def say(self, text: str) -> None:
        """Print a line to the user."""
        say(self.rank, text)

    @property
    def speaks(self) -> bool:
        """Whether this rank says what it waits for: two a node, since one of them may build."""
        return self.local_rank <= 1
