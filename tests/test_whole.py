"""A build goes on where an earlier one was killed while it linked a library."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.build.whole import is_whole
from tests.sources import ROOT

BUILD = """
import torch
from lockstep.build.backends import lower
from lockstep.capture.capture import capture

lower(capture(lambda x: torch.tanh(x) * x, torch.ones(64)), "inductor")
"""
OFF = "import lockstep.build.compiling as m; m.is_whole = __import__('os').path.exists"


def test_what_a_linker_left_is_not_whole(tmp_path: Path) -> None:
    library = tmp_path / "a.so"
    assert not is_whole(str(library))
    head = bytearray(b"\x7fELF\x02\x01" + bytes(58))
    struct.pack_into("<Q", head, 40, 100)
    struct.pack_into("<HH", head, 58, 64, 3)
    whole = bytes(head) + bytes(100 - 64 + 3 * 64)
    for left in range(len(whole)):
        library.write_bytes(whole[:left])
        assert not is_whole(str(library)), left
    library.write_bytes(whole)
    assert is_whole(str(library))
    library.write_bytes(bytes(len(whole)))  # written from its end on: the header comes last
    assert not is_whole(str(library))


def test_a_build_after_one_that_was_killed(built: Path) -> None:
    (library,) = built.rglob("*.main.so")
    whole = library.read_bytes()
    library.write_bytes(whole[:5000])
    assert build(built) == (0, "")
    assert len(library.read_bytes()) == len(whole)


def test_the_twin_torch_opens_what_is_there(built: Path) -> None:
    (library,) = built.rglob("*.main.so")
    library.write_bytes(library.read_bytes()[:5000])
    assert build(built, OFF)[0] in (-signal.SIGBUS, 1)  # by where the linker puts what


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inductor")
    assert build(folder) == (0, "")
    return folder


def build(caches: Path, first: str = "") -> tuple[int, str]:
    """Build with these caches in a process of its own; returns its exit code and what it said."""
    env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches)}
    command = [sys.executable, "-c", f"{first}\n{BUILD}"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    return done.returncode, done.stderr[-3000:] if done.returncode else ""
