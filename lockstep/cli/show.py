"""`lockstep show`: what is in an artifact, without executing any of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from lockstep.cli.files import readable


def show(file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]) -> int:
    """Print what is in an artifact, without executing any of it.

    Args:
        file: the artifact.
    """
    path = readable(file, "an artifact")
    from lockstep.build.describe import describe

    print(describe(path))
    return 0
