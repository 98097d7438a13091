"""`lockstep show`: what is in an artifact, without executing any of it."""

from __future__ import annotations

from pathlib import Path

from lockstep.cli.files import readable


def show(file: Path, /) -> int:
    """Print what is in an artifact or a bundle, without executing any of it.

    Args:
        file: the artifact, or the bundle.
    """
    path = readable(file, "an artifact")
    from lockstep.build.describe import describe

    print(describe(path))
    return 0
