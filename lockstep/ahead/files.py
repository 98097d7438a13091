"""Files that a script opens for writing while its steps are built: a run would write them, too."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class Written:
    """Tells of each file once, by name, while it is on; Python has no way to leave off.

    Args:
        tell: gets the file's whole path.
        but: folders besides the temporary one whose files are not told.
    """

    def __init__(self, tell: Callable[[str], None], but: Sequence[Path | str] = ()) -> None:
        self._tell, self.on = tell, True
        roots = [tempfile.gettempdir(), "/dev", "/proc", *map(str, but)]
        self._but = tuple(os.path.realpath(root) + os.sep for root in roots)
        self._told: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open" or not self.on or not isinstance(args[0], (str, bytes)):
            return
        mode, flags = args[1], args[2]
        writes = set(mode) & set("wax+") if isinstance(mode, str) else flags & _WRITES
        if not writes:
            return
        path = os.path.realpath(os.fsdecode(args[0]))
        if (
            path in self._told
            or path.startswith(self._but)
            or f"{os.sep}__pycache__{os.sep}" in path
        ):
            return
        self._told.add(path)
        self.on = False  # what is told may open a file, too
        self._tell(path)
        self.on = True
