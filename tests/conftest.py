"""What all tests share: a run folder and a store of their own, and one thread a process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests write sources anew within the second that byte code is told apart by.
os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Journals and artifacts of this process' steps go to a temporary folder."""
    root = tmp_path_factory.mktemp("lockstep")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_RUNS", str(root / "runs"))
        patch.setenv("LOCKSTEP_STORE", str(root / "store"))
        yield root


@pytest.fixture(scope="module", autouse=True)
def own_mesh() -> Iterator[None]:
    """The axes that a file makes are gone before the next file's tests."""
    from lockstep.spmd.mesh import apart  # here: torch reads a process' threads at its import

    with apart():
        yield
