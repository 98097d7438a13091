"""Run a user's script in this process, as one rank of a world that need not be there."""

from __future__ import annotations

import contextlib
import os
import runpy
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch.distributed as dist

from lockstep import _compat
from lockstep.capture.hooks import swapped


def run_script(path: Path, arguments: Sequence[str], world: int) -> None:
    """Run a script as `python PATH ARGUMENTS` under torchrun would, as rank 0 of a world.

    Whatever it asks for, its process group is of this process alone: one real rank, or of several
    the only one, whose collectives give back what they get.

    Args:
        path: the script; it sees itself as `__main__`.
        arguments: its own.
        world: the number of ranks that it sees.

    Raises:
        Whatever the script raises.
    """
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    os.environ.update(_torchrun_environment(world))
    with _own_group(world):
        runpy.run_path(str(path), run_name="__main__")


def _torchrun_environment(world: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "ROLE_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "ROLE_WORLD_SIZE": str(world),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "none",
    }


@contextlib.contextmanager
def _own_group(world: int) -> Iterator[None]:
    """`dist.init_process_group` makes a group without other processes while inside."""

    def begin(original: Any, args: Any, kwargs: Any) -> Any:
        if world == 1:
            return original("gloo", rank=0, world_size=1, store=dist.HashStore())
        return original("fake", rank=0, world_size=world, store=_compat.fake_store())

    function: FunctionType = dist.distributed_c10d.init_process_group  # type: ignore[assignment]
    with swapped({function: begin}):
        yield
