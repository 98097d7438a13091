"""Verified fixes as a patch file, or on standard output; the user's own files stay as they are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import UsageError

if TYPE_CHECKING:
    from lockstep.checker.repair.edits import Edit

STDOUT = "-"
_FIRST = b"--- a/"


def refuse_unwritable(out: str, repair_s: float) -> None:
    """Refuse a place for a patch before anything runs.

    Args:
        out: a file, or "-".
        repair_s: seconds in which fixes are tried out.

    Raises:
        UsageError: no patch can be written there, or what is there is none; or none is tried out.
    """
    if repair_s == 0:
        raise UsageError("--repair-s 0 tries no fix out, and none is written", fix="leave it out")
    if out == STDOUT:
        return
    path, want = Path(out), "a file to write, or - for standard output"
    if path.is_dir():
        raise UsageError(f"{path} is a folder", want=want)
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written", got=f"no folder {path.parent}", want=want)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written", got="permission denied", want=want)
    if path.exists() and path.stat().st_size and not _is_patch(path):
        raise UsageError(
            f"{path} exists and is no patch", got="another kind of file", want="a new file"
        )


def write_fixes(edits: list[Edit], script: Path, out: str) -> None:
    """Write edits as a patch, and say on standard error what was written and how it is applied.

    Args:
        edits: the verified ones of a check.
        script: the script that was checked, beside which its modules are found.
        out: a file, or "-".
    """
    from lockstep.checker.repair.patch import patch_of
    from lockstep.report.check_world import importing_beside

    with importing_beside(script):
        patch = patch_of(edits, Path.cwd())
    for name in patch.outside:
        _say(f"{name} lies outside of {Path.cwd()}: its fix is not in the patch")
    if not patch.text:
        old = out != STDOUT and Path(out).exists()
        _say("no verified fix: nothing written" + (f"; {out} is an earlier one" if old else ""))
    elif out == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(patch.to_bytes())
        sys.stdout.flush()
    else:
        Path(out).write_bytes(patch.to_bytes())
        _say(f"{out}: the fixes for {', '.join(patch.files)}; git apply {out}")


def _is_patch(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_FIRST)) == _FIRST


def _say(text: str) -> None:
    print(text, file=sys.stderr)
