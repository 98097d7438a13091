"""Run a user's script in this process, as a rank of a world that is there, or need not be."""

from __future__ import annotations

import contextlib
import math
import os
import runpy
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch.distributed as dist

from lockstep import _compat
from lockstep.capture.hooks import swapped
from lockstep.run import edited

MOST_ON_NODE = 8  # ranks of a node, as a script that asks for its local rank sees them


def run_script(path: Path, arguments: Sequence[str], world: int, rank: int = 0) -> None:
    """Run a script as `python PATH ARGUMENTS` under torchrun would, as one rank of a world.

    Whatever it asks for, its process group is of this process alone: one real rank, or of several
    the only one, whose collectives give back what they get.

    Args:
        path: the script; it sees itself as `__main__`.
        arguments: its own.
        world: the number of ranks that it sees.
        rank: its own.

    Raises:
        Whatever the script raises.
    """
    os.environ.update(_torchrun_environment(world, rank))
    with _own_group(world, rank):
        _run(path, arguments)


def run_rank(path: Path, arguments: Sequence[str], texts: Mapping[str, str] | None = None) -> None:
    """Run a script as torchrun does, in a process that torchrun has started; on the CPU alone.

    Whatever backend it asks for, its process groups are gloo's.

    Args:
        path: the script; it sees itself as `__main__`.
        arguments: its own.
        texts: of files that are loaded from other text; see `edited.loading`.

    Raises:
        Whatever the script raises.
    """

    def begin(original: Any, args: Any, kwargs: Any) -> Any:
        named = dict(zip(("backend", "init_method", "timeout"), args, strict=False))
        rest = {**named, **kwargs, "backend": "gloo"}
        rest.pop("device_id", None)
        return original(**rest)

    with swapped({_init_process_group(): begin}):
        _run(path, arguments, texts)


def _run(path: Path, arguments: Sequence[str], texts: Mapping[str, str] | None = None) -> None:
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    own = (texts or {}).get(str(path.resolve()))
    with edited.loading(texts) if texts else contextlib.nullcontext():
        if own is not None:
            edited.run_text(path, own)
        else:
            runpy.run_path(str(path), run_name="__main__")


def _torchrun_environment(world: int, rank: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    local = world if world <= MOST_ON_NODE else math.gcd(world, MOST_ON_NODE)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "GROUP_RANK": str(rank // local),
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local),
        "ROLE_WORLD_SIZE": str(world),
        "GROUP_WORLD_SIZE": str(world // local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }


@contextlib.contextmanager
def _own_group(world: int, rank: int) -> Iterator[None]:
    """`dist.init_process_group` makes a group without other processes while inside."""

    def begin(original: Any, args: Any, kwargs: Any) -> Any:
        if world == 1:
            return original("gloo", rank=0, world_size=1, store=dist.HashStore())
        return original("fake", rank=rank, world_size=world, store=_compat.fake_store())

    def group(original: Any, args: Any, kwargs: Any) -> Any:
        named = dict(zip(("ranks", "timeout", "backend", "pg_options"), args, strict=False))
        return original(**{**named, **kwargs, "backend": "fake"})

    swaps: dict[FunctionType, Any] = {_init_process_group(): begin}
    if world > 1:
        swaps[dist.distributed_c10d.new_group] = group  # type: ignore[index]
    with swapped(swaps):
        yield


def _init_process_group() -> FunctionType:
    return dist.distributed_c10d.init_process_group  # type: ignore[return-value]
