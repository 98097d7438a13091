"""Trace a step again whose program was loaded, and compare: is it still the one in the artifact?

A fingerprint tells what a step reaches without tracing it. What it can't read is listed there as
not covered; where that list is not empty, the first hit is audited by itself, and any hit where
LOCKSTEP_AUDIT is 1. Rank 0 traces; the others go on, and hear of a fault as of any other.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from lockstep.build.artifact import read_manifest
from lockstep.build.fingerprint import Fields
from lockstep.errors import ArtifactError
from lockstep.fleet.obtain import Obtained
from lockstep.fleet.store import ArtifactStore
from lockstep.run.admit import Build
from lockstep.run.session import Session

AUDIT = "LOCKSTEP_AUDIT"
MARK = ".audited"  # beside an artifact: the digest of what was audited


def audit(obtained: Obtained, build: Build, store: ArtifactStore, here: Session) -> None:
    """Audit a program that the store had, where that is asked for or due; on one rank.

    Args:
        build: of the same call, which can be traced again.

    Raises:
        ArtifactError: the step's graph is another one than the artifact's.
    """
    if obtained.role != "loaded" or obtained.by is not None:
        return
    uncovered = build.wanted.get("not covered", [])
    asked = os.environ.get(AUDIT, "")
    mark = None if store.pinned or obtained.path is None else _mark(store, obtained.path)
    due = bool(uncovered) and mark is not None and not _is_marked(mark, obtained.digest)
    if asked == "0" or not (asked == "1" or due):
        return
    name, manifest = build.step.name, read_manifest(obtained.data)
    if manifest.get("early") or "graph" not in manifest:
        here.say(f"{name} is not audited: its graph stands for numbers of each rank")
        return
    begin = time.monotonic()
    found = build.captured(None).digest
    seconds = time.monotonic() - begin
    here.journal.event("audited", step=name, same=found == manifest["graph"], seconds=seconds)
    if found != manifest["graph"]:
        raise stale(name, uncovered, obtained, found, manifest)
    here.say(f"{name} is audited in {seconds:.1f} s: traced again, its graph is the artifact's")
    if mark is not None:
        _put(mark, obtained.digest)


def stale(
    name: str, uncovered: list[str], obtained: Obtained, found: str, manifest: Fields
) -> ArtifactError:
    """The error that names what the fingerprint could not read."""
    listed = ", ".join(uncovered[:4]) + (f" and {len(uncovered) - 4} more" if uncovered[4:] else "")
    return ArtifactError(
        f"{name} traces to another graph than the artifact's, and their fingerprints are the same",
        where=obtained.path,
        got=f"a graph {found[:16]}",
        want=f"the artifact's, {manifest['graph'][:16]}",
        why=f"something that no fingerprint reads has changed: {listed or 'nothing is listed'}",
        fix=[
            f"delete {obtained.path}, and the next start builds the right one",
            "hold what decides in numbers, strings, dataclasses or functions, which are read",
        ],
    )


def _mark(store: ArtifactStore, where: str) -> Path:
    """The mark beside an artifact, or beside the copy that this node has of it."""
    return store.path_of(where.rpartition("/")[2] + MARK)


def _is_marked(mark: Path, digest: str) -> bool:
    try:
        return mark.read_text() == digest
    except OSError:
        return False


def _put(mark: Path, digest: str) -> None:
    try:
        temporary = mark.with_name(f".{mark.name}.{os.getpid()}.tmp")
        temporary.write_text(digest)
        temporary.rename(mark)
    except OSError:
        return  # a store that takes nothing: the next start audits again
