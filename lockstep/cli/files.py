"""Files named on the command line: a wrong one is told in one message, without a traceback."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.errors import UsageError


def readable(path: Path, what: str) -> Path:
    """Return `path` where it is a file that can be read.

    Args:
        path: as the user wrote it.
        what: what the file should be, in the words of the message, such as "an artifact".

    Raises:
        UsageError: it is missing, a folder, or closed to this user.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", want=f"{what}, which is one file")
    if not path.exists():
        near = path.parent if path.parent.is_dir() else None
        seen = (
            f"no such file; {near} exists" if near else f"no such file, and no folder {path.parent}"
        )
        raise UsageError(f"{path} is missing", got=seen, want=what)
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read", got="permission denied", want=what)
    return path


def write(path: Path, text: str) -> None:
    """Write a file that a flag names.

    Raises:
        UsageError: it can't be written there.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written", got=str(error), want="a file") from error
