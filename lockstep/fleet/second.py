"""One more rank's view of what is built, for the builder to compare with its own.

While one rank builds, the one at the other end of those that share the program makes its view at
the same time; the builder waits for it before it publishes. Ranks that find the artifact in the
store do neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Second:
    """The way from one rank's view to the builder.

    Args:
        view: makes this rank's view, a JSON value; called on one rank that does not build.

    Example:
        >>> Second(lambda: {}).other() is None
        True
    """

    def __init__(self, view: Callable[[], Any]) -> None:
        self.view = view
        self._ask: Callable[[], Any] | None = None

    def comes_from(self, ask: Callable[[], Any]) -> None:
        """Say how the other rank's view is waited for."""
        self._ask = ask

    def other(self) -> Any:
        """Return the other rank's view, waiting for it; None in a world of one."""
        return self._ask() if self._ask is not None else None
