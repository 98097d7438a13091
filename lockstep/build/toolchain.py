"""What a rank would build with, told without starting any of it: ranks of one job have the same."""

from __future__ import annotations

import functools
import os
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any


@functools.cache
def toolchain(backend: str) -> dict[str, Any]:
    """Return name -> what it is, a JSON value; None for what this rank lacks.

    A C++ compiler is told by the file that it is, name and size: asking it for its version would
    start it on every rank.

    Args:
        backend: "graph" compiles nothing.

    Example:
        >>> list(toolchain("graph"))
        ['python abi', 'cuda']
    """
    import torch

    found: dict[str, Any] = {
        "python abi": sysconfig.get_config_var("SOABI"),
        "cuda": torch.version.cuda or torch.version.hip,
    }
    if backend == "inductor":
        found["C++ compiler"] = _compiler()
        found["triton"] = _version("triton")
    return found


def _compiler() -> str | None:
    path = shutil.which(os.environ.get("CXX") or "g++")
    if path is None:
        return None
    file = Path(path).resolve()
    return f"{file.name}, {file.stat().st_size} bytes"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
