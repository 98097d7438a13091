"""A DeviceMesh is no state of a step: while one is traced, it is asked as outside of it.

Slices of it, and what it says of sizes and groups, are read off a table of ranks that is a tensor.
A trace must neither record that nor make the table an input. Making a group takes every rank, so a
step that is captured on one rank alone cannot.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from lockstep import _compat
from lockstep.capture.hooks import swapped
from lockstep.capture.origin import user_line
from lockstep.errors import CaptureError


@contextlib.contextmanager
def asking_meshes(alone: bool) -> Iterator[None]:
    """Let meshes compute on real tensors on this thread, untraced, while inside.

    Args:
        alone: whether the other ranks may not be capturing the step as well.

    Raises:
        CaptureError: in the trace, where a step makes a process group and is captured alone.
    """
    swaps: dict[Any, Any] = dict.fromkeys(_compat.mesh_methods(), _untraced)
    if alone:
        c10d = dist.distributed_c10d
        swaps |= dict.fromkeys((c10d.new_group, c10d.split_group), _refused)
    with swapped(swaps):
        yield


def _untraced(original: Any, args: Any, kwargs: Any) -> Any:
    with _compat.without_modes():
        return original(*args, **kwargs)


def _refused(original: Any, args: Any, kwargs: Any) -> Any:
    raise CaptureError(
        "the step makes a process group",
        where=user_line(),
        why="all ranks make a group together, and one rank alone captures the step",
        fix="make the group, or flatten the mesh, once and before the step",
    )
