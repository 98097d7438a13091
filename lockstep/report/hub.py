"""Where the ranks of a job meet that run a step live: their collectives are computed in the parent.

Each rank opens a connection for each step that it runs live, and says which collective it starts
and which one it waits for. Ranks that wait for each other are told so at once, and end the step.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import torch

from lockstep.checker.live.kernels import Kernels
from lockstep.checker.live.meeting import Meeting, Parted, Start
from lockstep.errors import CaptureError


@dataclass
class _Room:
    """One step's meeting."""

    meeting: Meeting
    size: int
    waits: dict[int, int] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    parted: Parted | None = None

    def stands(self) -> bool:
        """Whether every rank waits for a result that is not there, or has ended; and one waits."""
        results = self.meeting.results
        lacking = {rank for rank, number in self.waits.items() if number not in results[rank]}
        return bool(lacking - self.over) and len(lacking | self.over) == self.size


class Hub:
    """Serves a job's ranks; `parted` says of which steps the ranks' collectives did not meet."""

    def __init__(self, address: Path) -> None:
        self._listener = Listener(str(address), "AF_UNIX", backlog=64)
        self._rooms: dict[str, _Room] = {}
        self._changed = threading.Condition()
        self._closing = False

    @property
    def parted(self) -> dict[str, Parted]:
        """By step."""
        return {name: room.parted for name, room in self._rooms.items() if room.parted is not None}

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve while inside."""
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._closing = True
            with contextlib.suppress(OSError):
                Client(self._listener.address, "AF_UNIX").close()  # wakes the one who accepts
            thread.join()
            self._listener.close()

    def _accept(self) -> None:
        while True:
            with contextlib.suppress(EOFError, OSError):
                connection = self._listener.accept()
                if self._closing:
                    return
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError), connection:
            step, mesh, rank = _heard(connection)
            with self._changed:
                meeting = Meeting(mesh)
                room = self._rooms.setdefault(step, _Room(meeting, len(meeting.results)))
            try:
                while True:
                    self._answer(room, rank, connection, _heard(connection))
            finally:
                with self._changed:
                    room.over.add(rank)
                    self._look(room)

    def _answer(self, room: _Room, rank: int, connection: Connection, said: Any) -> None:
        with self._changed:
            if isinstance(said, Start):
                room.meeting.add(rank, said)
                self._look(room)
                return
            room.waits[rank] = said
            self._look(room)
            results = room.meeting.results[rank]
            self._changed.wait_for(lambda: said in results or room.parted is not None)
            result = results.get(said)
        connection.send_bytes(pickle.dumps(result))

    def _look(self, room: _Room) -> None:
        """Compute what can be; where no rank can go on, let them all end."""
        try:
            room.meeting.meet()
            if room.parted is None and room.stands():
                waits = {r: n for r, n in room.waits.items() if r not in room.over}
                room.parted = Parted(room.meeting.stuck(waits))
        except Parted as parted:
            room.parted = room.parted or parted
        self._changed.notify_all()


@contextlib.contextmanager
def meeting_at(address: str, step: str, mesh: dict[str, int], place: int) -> Iterator[None]:
    """Run functional collectives through a hub while inside, on one of the ranks.

    Args:
        address: the hub's.
        step: its name; `mesh` is its mesh, and `place` this rank's in it, row-major.
    """
    with Client(address, "AF_UNIX") as connection:

        def say(said: Any) -> None:
            connection.send_bytes(pickle.dumps(said))

        def result(number: int) -> torch.Tensor:
            say(number)
            found = _heard(connection)
            if found is None:
                raise CaptureError("the ranks' collectives do not meet")
            return found

        say((step, mesh, place))
        kernels = Kernels(list(mesh), lambda start, _: say(start), result)
        with kernels.running():
            yield


def _heard(connection: Connection) -> Any:
    return pickle.loads(connection.recv_bytes())
