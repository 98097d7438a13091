"""`lockstep diff`: why are these two not the same artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.cli.files import readable


def diff(old: Path, new: Path, /) -> int:
    """Print every field in which two artifacts differ, and what it can change; 0 where none does.

    Nothing of either is executed.

    Args:
        old: an artifact.
        new: another one.
    """
    one, other = (readable(path, "an artifact") for path in (old, new))
    from lockstep.build.artifact import read_manifest
    from lockstep.build.describe import printable
    from lockstep.build.differing import rows_of, table

    had, has = read_manifest(one), read_manifest(other)
    rows = rows_of(had.get("fingerprint", {}), has.get("fingerprint", {}))
    same = blobs_of(had) == blobs_of(has)
    print(printable("\n".join([*heads(had, has, one, other), *table(rows)])))
    if not rows:
        told = "and their bytes are the same" if same else "but their bytes differ: built twice"
        print(f"both are of one fingerprint, {told}")
    return 1 if rows or not same else 0


def heads(old: dict[str, Any], new: dict[str, Any], one: Path, other: Path) -> list[str]:
    """What the two are, one line each."""
    return [
        f"{sign} {path.name}: {manifest.get('step', 'no name')}, {manifest['backend']}"
        for sign, path, manifest in (("-", one, old), ("+", other, new))
    ]


def blobs_of(manifest: dict[str, Any]) -> dict[str, str]:
    """Each blob's digest."""
    return {row["name"]: row["sha256"] for row in manifest.get("blobs", [])}
