"""Count what a loading rank must never do: at method level, so that no import can slip past.

with counting() as counts:
    ...
assert counts == Counts()
"""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPILERS = ("g++", "gcc", "c++", "cc", "clang", "clang++", "ld", "nvcc", "ptxas")


@dataclass
class Counts:
    """How often this process traced, lowered, compiled; a fresh one is all zeros."""

    traces: int = 0
    frames: int = 0
    lowerings: int = 0
    builds: int = 0
    processes: int = 0


_active: list[Counts] = []
_hooked = False


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _active and event in ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"):
        for counts in _active:
            counts.processes += 1


@contextmanager
def counting(load_compiler: bool = True) -> Iterator[Counts]:
    """Count in this process: traces, Dynamo frames, Inductor lowerings, C++ builds, processes.

    Args:
        load_compiler: import Inductor and Dynamo in order to count their calls; with False only
            what is imported already is counted, so that the process stays as it is.
    """
    global _hooked
    counts = Counts()
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    with ExitStack() as stack:
        for module, owner, method, field in _METHODS:
            if load_compiler or module in sys.modules:
                stack.enter_context(_counted(module, owner, method, field, counts))
        _active.append(counts)
        stack.callback(_active.remove, counts)
        yield counts


_METHODS = (
    ("torch.fx.experimental.proxy_tensor", "_MakefxTracer", "trace", "traces"),
    ("torch._dynamo.convert_frame", "ConvertFrameAssert", "__call__", "frames"),
    ("torch._inductor.graph", "GraphLowering", "run", "lowerings"),
    ("torch._inductor.cpp_builder", "CppBuilder", "build", "builds"),
)


@contextmanager
def _counted(module: str, owner: str, method: str, field: str, counts: Counts) -> Iterator[None]:
    kind = getattr(__import__(module, fromlist=[owner]), owner)
    original: Callable[..., Any] = getattr(kind, method)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(counts, field, getattr(counts, field) + 1)
        return original(self, *args, **kwargs)

    setattr(kind, method, call)
    try:
        yield
    finally:
        setattr(kind, method, original)


def recording_compilers(folder: Path) -> dict[str, str]:
    """Put stand-ins for every compiler into a folder: each writes a line to `calls` and fails.

    Args:
        folder: made where missing; put first on PATH by the returned environment.

    Returns:
        Environment entries: PATH with the folder first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMPILERS:
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder / "calls"}"\nexit 1\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}


def recorded_calls(folder: Path) -> list[str]:
    """Return the command lines that the stand-ins of `recording_compilers` were called with."""
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else []
