"""A step must not look at its rank: reads of it by user code are refused at their line.

torch's own frames get the number, since its helpers ask for it and do not put it into the graph.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.origin import is_user_file, line_of
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_ENVIRONMENT = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "HOSTNAME")
_CAPTURE = str(Path(__file__).with_name("capture.py"))
_MESH = ("get_local_rank", "get_coordinate", "get_rank")


@contextlib.contextmanager
def refusing_rank_reads() -> Iterator[None]:
    """Refuse reads of the rank by user code on this thread while inside."""
    swaps: dict[FunctionType, Any] = {
        dist.distributed_c10d.get_rank: _asked("dist.get_rank()"),
        dist.distributed_c10d.get_group_rank: _asked("dist.get_group_rank()"),
        dist.distributed_c10d.get_node_local_rank: _asked("dist.get_node_local_rank()"),
        type(os.environ).__getitem__: _environment,  # type: ignore[dict-item]
    }
    for name in _MESH:
        swaps[getattr(DeviceMesh, name)] = _asked(f"mesh.{name}()")
    with swapped(swaps), _group_rank():
        yield


def _asked(what: str) -> Any:
    def read(original: Any, args: Any, kwargs: Any) -> Any:
        _refuse_user(caller_frame(), what)
        return original(*args, **kwargs)

    return read


def _environment(original: Any, args: Any, kwargs: Any) -> Any:
    frame = caller_frame()
    while frame is not None and _is_stdlib(frame):
        frame = frame.f_back
    if args[1] in _ENVIRONMENT and not _is_importing(frame):
        _refuse_user(frame, f'os.environ["{args[1]}"]')
    return original(*args, **kwargs)


def _is_stdlib(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith("<frozen") or name == os.__file__


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the trace set off an import: a library that lists the environment is not the step."""
    while frame is not None and frame.f_code.co_filename != _CAPTURE:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def _group_rank() -> Iterator[None]:
    """`group.rank()` is a C method: the raw entry is put back, an unwrapped one would not bind."""
    raw = vars(dist.ProcessGroup)["rank"]
    original = dist.ProcessGroup.rank

    def rank(group: dist.ProcessGroup) -> int:
        _refuse_user(sys._getframe(1), "group.rank()")
        return original(group)

    dist.ProcessGroup.rank = rank  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.ProcessGroup.rank = raw  # type: ignore[method-assign]


def _refuse_user(frame: FrameType | None, what: str) -> None:
    if frame is None or not is_user_file(frame.f_code.co_filename):
        return
    refuse(
        CaptureError(
            f"the step reads its rank: {what}",
            where=line_of(frame),
            why="the program of one rank would be shipped to all of them",
            fix=[
                "do what depends on the rank outside the step",
                "pass a tensor that the caller made from the rank",
            ],
        )
    )
