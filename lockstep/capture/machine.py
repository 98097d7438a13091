"""What tells one process or machine from another by text or number: refused at the user's line.

The environment's rank, the host's name, the process' id, what the system draws by chance. No
program can read them as it runs, and those of the building rank would be shipped.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import secrets
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.origin import is_torch_file, is_user_file, line_of
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_ENVIRONMENT = {
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "HOSTNAME",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK",
}  # fmt: skip
_BUILTINS: list[tuple[Any, str]] = [
    *((os, "getpid"), (os, "getppid"), (os, "urandom"), (socket, "gethostname")),
    *((secrets, "randbelow"), (secrets, "choice"), (secrets, "randbits")),
]
_CHANCE: list[Any] = [
    *(uuid.uuid1, uuid.uuid4, secrets.token_bytes, secrets.token_hex, secrets.token_urlsafe),
    random.SystemRandom.random,
]  # what is drawn of the system: nobody can seed it, and another comes at each call
# Functions of torch that call what a user wrote: modules, checkpoints, autograd Functions, hooks.
_CALLS_USERS = {
    "_wrapped_call_impl", "_call_impl", "inner", "forward", "backward", "apply", "checkpoint",
    "decorate_context", "wrapper", "step", "profile_hook_step", "_use_grad", "__torch_function__",
}  # fmt: skip
_CAPTURE = str(Path(__file__).with_name("capture.py"))


@contextlib.contextmanager
def refusing_machine_reads() -> Iterator[None]:
    """Refuse such reads by user code on this thread while inside."""
    swaps: dict[Any, Any] = {
        dist.distributed_c10d.get_node_local_rank: _refused("dist.get_node_local_rank()", True),
        platform.node: _refused("platform.node()"),
        type(os.environ).__getitem__: _environment,
        **{f: _refused(f"{f.__module__}.{f.__qualname__}()") for f in _CHANCE},
    }
    with swapped(swaps), contextlib.ExitStack() as stack:
        for module, name in _BUILTINS:
            stack.enter_context(_builtin(module, name))
        yield


def _refused(what: str, rank: bool = False) -> Any:
    def read(original: Any, args: Any, kwargs: Any) -> Any:
        _refuse_user(caller_frame(), what, rank)
        return original(*args, **kwargs)

    return read


@contextlib.contextmanager
def _builtin(module: Any, name: str) -> Iterator[None]:
    """Refuse a function of C: it has no code to swap, so the module gives out another."""
    original = getattr(module, name)

    def read(*args: Any) -> Any:
        _refuse_user(sys._getframe(1), f"{module.__name__}.{name}()")
        return original(*args)

    setattr(module, name, read)
    try:
        yield
    finally:
        setattr(module, name, original)


def _environment(original: Any, args: Any, kwargs: Any) -> Any:
    frame = caller_frame()
    while frame is not None and _is_stdlib(frame):
        frame = frame.f_back
    if args[1] in _ENVIRONMENT:
        _refuse_user(frame, f'os.environ["{args[1]}"]', rank=True)
    return original(*args, **kwargs)


def _is_stdlib(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith("<frozen") or name == os.__file__


def _is_set_off(frame: FrameType | None) -> bool:
    """Whether it is not the step that reads: an import, an object's end, or torch for itself."""
    while frame is not None and frame.f_code.co_filename != _CAPTURE:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "__del__":
            return True
        if is_torch_file(code.co_filename) and code.co_name not in _CALLS_USERS:
            return True
        frame = frame.f_back
    return False


def _refuse_user(frame: FrameType | None, what: str, rank: bool = False) -> None:
    if frame is None or not is_user_file(frame.f_code.co_filename) or _is_set_off(frame):
        return
    instead = ["read the rank as dist.get_rank() or mesh.get_local_rank(axis)"] if rank else []
    refuse(
        CaptureError(
            f"the step reads its {'rank' if rank else 'process or machine'}: {what}",
            where=line_of(frame),
            why="the program of one rank would be shipped to all of them",
            fix=[*instead, "read it outside the step, and pass a tensor that is made from it"],
        )
    )
