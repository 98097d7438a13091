"""The run journal: one JSON line per event and rank, never half a line.

A line is written by one `write(2)` on an O_APPEND descriptor, so that nothing is left to flush when
a process is ended, and lines of several writers never mix.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Journal:
    """Append events to one file, and to torch's trace where TORCH_TRACE asks for one.

    Args:
        path: the file, made with its folders where missing; None keeps nothing.
        rank: this process's rank, written into every line.
        static: fields that every line of this journal carries.

    Example:
        >>> Journal(None, rank=0).event("loaded", seconds=0.1)
    """

    def __init__(self, path: Path | str | None, rank: int, **static: Any) -> None:
        self.path = None if path is None else Path(path)
        self._static = {"rank": rank, **static}
        self._fd: int | None = None
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def event(self, name: str, **fields: Any) -> None:
        """Write one line: wall-clock seconds, the event's name, the static and the given fields."""
        if self._fd is None:
            return
        line = {"time": round(time.time(), 3), "event": name, **self._static, **fields}
        text = json.dumps(line, default=str)
        if os.environ.get("TORCH_TRACE"):
            _trace(name, text)
        try:
            os.write(self._fd, (text + "\n").encode())
        except OSError as error:  # a full disk costs the journal, and never the run
            self.close()
            rank = self._static["rank"]
            text = f"[lockstep rank {rank}] warning: the journal ends here: {error} ({self.path})"
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the descriptor; later events are dropped."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _trace(name: str, text: str) -> None:
    """Say it to what reads torch's traces, too: tlparse."""
    from lockstep import _compat  # torch is there: whoever traces with it has imported it

    _compat.trace_event(name, text)


def read_journals(folder: Path | str) -> list[dict[str, Any]]:
    """Return the events of every `*.jsonl` under a run's folder, in the order of their time.

    A torn last line, as a machine that lost power leaves it, is dropped.
    """
    events = []
    for path in sorted(Path(folder).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return sorted(events, key=lambda event: event["time"])
