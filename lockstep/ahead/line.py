"""The line between a traced rank and the one process that hears them all: JSON, a line each."""

from __future__ import annotations

import json
import os
from typing import Any


class Line:
    """A rank's end of it.

    Args:
        up: a descriptor that is written to.
        down: one that answers are read from.

    Example:
        >>> here, there = os.pipe(), os.pipe()
        >>> line = Line(here[1], there[0])
        >>> _ = os.write(there[1], json.dumps({"go": True}).encode() + bytes([10]))
        >>> line.ask("captured", step="train"), os.read(here[0], 99)
        ({'go': True}, b'{"event": "captured", "step": "train"}\\n')
        >>> line.close()
    """

    def __init__(self, up: int, down: int) -> None:
        self._up, self._down = up, os.fdopen(down, "rb")

    def tell(self, event: str, **fields: Any) -> None:
        """Say what happened here."""
        data = memoryview(json.dumps({"event": event, **fields}).encode() + b"\n")
        while data:
            data = data[os.write(self._up, data) :]

    def ask(self, event: str, **fields: Any) -> dict[str, Any]:
        """Say it, and wait for the answer; where nobody is left to answer, this process ends."""
        self.tell(event, **fields)
        answer = self._down.readline()
        if not answer:
            os._exit(1)
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """Ask no more."""
        self._down.close()
