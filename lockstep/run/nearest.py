"""Why a store has not what a job wants: the artifact of the same step that comes nearest to it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.build.artifact import read_manifest
from lockstep.build.differing import Row, named, rows_of
from lockstep.build.fingerprint import Fields
from lockstep.errors import ArtifactError
from lockstep.fleet.store import SUFFIX, ArtifactStore

MOST = 24  # artifacts that are looked at, the newest first
KEPT = 200  # rows that a journal keeps


@dataclass(frozen=True)
class Nearest:
    """An artifact of the same step in a store.

    Args:
        path: its file.
        built: when, in seconds since 1970.
        rows: where it differs: old is what it has, new what is wanted.
    """

    path: Path
    built: float
    rows: list[Row]

    def event(self) -> dict[str, Any]:
        """What the journal keeps of it."""
        rows = [asdict(row) for row in self.rows[:KEPT]]
        return {"path": str(self.path), "built": self.built, "differ": len(self.rows), "rows": rows}


def nearest(store: Path, wanted: Fields) -> Nearest | None:
    """Find the artifact of the same step that differs in the fewest places.

    Args:
        store: its directory.
        wanted: the fingerprint that is asked for.

    Returns:
        None where the store has none of this step.
    """
    found: list[Nearest] = []
    for path in sorted(store.glob(f"*{SUFFIX}"), key=_time, reverse=True)[:MOST]:
        try:
            manifest = read_manifest(path)
        except (ArtifactError, OSError):
            continue  # damaged, foreign, or just dropped: it could not have served
        had = manifest.get("fingerprint", {})
        if had.get("step") == wanted.get("step"):
            built = manifest.get("built", {}).get("time", 0)
            found.append(Nearest(path, built, rows_of(had, wanted)))
    return min(found, key=lambda one: len(one.rows), default=None)


def why_missed(store: ArtifactStore, wanted: Fields) -> tuple[str, dict[str, Any]]:
    """Tell in one line why a store has not what is wanted, and what the journal keeps of it."""
    near = None if store.pinned else nearest(store.path, wanted)
    if near is None:
        return f"no program of {wanted['step']} in {store} yet", {}
    if not near.rows:
        return "", near.event()  # it was checked too little, which is told
    ago = max(time.time() - near.built, 0) / 3600
    told = f"nearest is {near.path.name}, built {ago:.1f} h ago; {len(near.rows)} differ"
    return f"nothing fits in {store}: {told}: {named(near.rows)}", near.event()


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # dropped just now
        return 0.0
