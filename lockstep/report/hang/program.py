"""An artifact's collectives: which line of its program stands for which line of the user's."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from lockstep import _compat
from lockstep.build.artifact import PROGRAM, Artifact
from lockstep.build.bytecode import filename_of


def lines_of(files: list[Path]) -> dict[str, dict[int, str]]:
    """A program's name in tracebacks -> the line of a collective -> the user's line.

    The program is parsed, and not executed. Where it has another number of collectives than its
    schedule, its lines stay as they are.

    Args:
        files: artifacts.

    Raises:
        ArtifactError: one of them is damaged.
    """
    found = {}
    for file in files:
        artifact = Artifact.from_bytes(file.read_bytes(), str(file))
        text = artifact.blobs[PROGRAM]
        schedule = artifact.manifest.get("schedule", [])
        at = collective_lines(text.decode())
        told = [item.get("line") or "" for item in schedule]
        name = filename_of(hashlib.sha256(text).hexdigest())
        found[name] = dict(zip(at, told, strict=True)) if len(at) == len(told) else {}
    return found


def collective_lines(text: str) -> list[int]:
    """The lines of a program's text that start a collective, in order."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.startswith(_compat.COLLECTIVE_CALLS) and "wait_tensor" not in name:
                found.append(node.lineno)
    return sorted(found)
