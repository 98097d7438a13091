"""A signal asks the training to save and leave; it is heard between two steps."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

# Schedulers send SIGTERM, or SIGUSR1 some time before; Ctrl-C is SIGINT.
ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Leave:
    """Hears the signals while it is entered.

    Example:
        >>> with Leave() as leave:
        ...     signal.raise_signal(signal.SIGTERM)
        >>> leave.asked
        'SIGTERM'
    """

    def __init__(self) -> None:
        self.asked = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Leave:
        self._before = {number: signal.signal(number, self._hear) for number in ASKING}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number).name
