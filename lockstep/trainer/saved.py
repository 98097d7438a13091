"""A folder of checkpoints as it lies on disk: which are whole, which is the newest, which go.

`step-00000100/` holds the files of torch's distributed checkpoint, and `whole.json`, which is
written last, names them with their sizes. What has another name is a draft that was not finished.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError

MARK = "whole.json"
_PREFIX, _DRAFT = "step-", ".draft-"


@dataclass(frozen=True)
class Saved:
    """A whole checkpoint.

    Args:
        path: its folder.
        step: how many steps the training had made.
        told: what was saved beside the tensors.
    """

    path: Path
    step: int
    told: dict[str, Any]


def draft_of(folder: Path, step: int) -> Path:
    """Return where a checkpoint is written before it is whole."""
    return folder / f"{_DRAFT}{step:08d}"


def finish(draft: Path, step: int, told: dict[str, Any]) -> Saved:
    """Make a written draft a checkpoint: mark it, then give it its name, at once."""
    sizes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
    mark = draft / MARK
    with mark.open("w") as file:
        json.dump({"step": step, "files": sizes, "told": told}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    path = draft.parent / f"{_PREFIX}{step:08d}"
    if path.exists():  # of a training that has rolled back, and came here again
        shutil.rmtree(path)
    draft.replace(path)
    _sync(path.parent)
    return Saved(path, step, told)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> Saved:
    """Return a checkpoint that is whole.

    Raises:
        UsageError: it is missing, or torn.
    """
    if not path.is_dir():
        raise UsageError(f"checkpoint {path} is missing: there is no such folder")
    try:
        mark = json.loads((path / MARK).read_text())
        files, step, told = mark["files"], int(mark["step"]), mark["told"]
    except FileNotFoundError:
        raise UsageError(f"checkpoint {path} is torn: it has no {MARK}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"checkpoint {path} is torn: its {MARK} cannot be read") from None
    for name, size in files.items():
        file = path / name
        there = file.stat().st_size if file.is_file() else None
        if there != size:
            seen = "is missing" if there is None else f"has {there} of {size} bytes"
            raise UsageError(f"checkpoint {path} is torn: {name} {seen}")
    return Saved(path, step, told)


def newest(folder: Path) -> tuple[Saved | None, list[str]]:
    """Return the newest whole checkpoint of a folder, and what is said of newer ones.

    Raises:
        UsageError: there are checkpoints, and none is whole.
    """
    torn: list[str] = []
    for path in reversed(_all(folder)):
        try:
            return read(path), torn
        except UsageError as error:
            torn.append(error.what)
    if torn:
        raise UsageError(f"no checkpoint in {folder} is whole: {'; '.join(torn)}")
    return None, []


def sweep(folder: Path, keep: int) -> None:
    """Delete drafts, and all but the newest `keep` checkpoints; 0 keeps all."""
    old = _all(folder)[:-keep] if keep else []
    for path in [*folder.glob(f"{_DRAFT}*"), *old]:
        shutil.rmtree(path, ignore_errors=True)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir())
