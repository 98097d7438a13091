"""A script's set-up below fake tensors: shapes and dtypes as they are, and no values at all.

Initialisation computes nothing and a large model takes no memory. What then asks for a value is
refused at the user's line while the set-up runs. Once a step was called, a value is what training
would give, which only logs and checkpoints ask for: it is nan, 0 or False.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from lockstep import _compat
from lockstep.capture.hooks import swapped
from lockstep.capture.origin import is_own_file, is_torch_file, line_of, user_frame
from lockstep.errors import UsageError

_BETWEEN = _compat.between_frames()


class NoValue(UsageError):
    """A set-up asked for the value of a tensor that has none."""


class Values(_compat.dispatch_mode()):  # type: ignore[misc]
    """Answers for the values that stand-ins lack.

    Args:
        stepped: whether a step was called already.
    """

    def __init__(self, stepped: Callable[[], bool]) -> None:
        super().__init__()
        self._stepped = stepped
        self.read_at: dict[str, None] = {}  # the lines that were told a made-up value

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = op is _compat.item_op() or op is torch.ops.aten.equal.default
        if reads and _compat.is_fake(args[0]) and _compat.known_value(args[0]) is None:
            return self._answer(op, args[0])
        return op(*args, **(kwargs or {}))

    def _answer(self, op: Any, tensor: torch.Tensor) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _passes_on(frame.f_code.co_filename):
            frame = frame.f_back
        by_torch = frame is not None and is_torch_file(frame.f_code.co_filename)
        if not by_torch:
            line = line_of(user_frame(frame))
            if not self._stepped():
                raise NoValue(
                    "the set-up reads the value of a tensor",
                    where=line,
                    why="below fake tensors initialisation computes nothing, so there is no value",
                    fix="lockstep build --real runs the set-up truly",
                )
            self.read_at[line] = None
        if op is not _compat.item_op() or tensor.dtype == torch.bool:
            return False
        return float("nan") if tensor.dtype.is_floating_point else 0


def _passes_on(filename: str) -> bool:
    return filename in _BETWEEN or is_own_file(filename)


@contextlib.contextmanager
def unvalued(stepped: Callable[[], bool], tell: Callable[[str], None]) -> Iterator[Values]:
    """Run what is inside below fake tensors, on this thread.

    Args:
        stepped: whether a step was called already.
        tell: told what is left out.
    """
    swaps: dict[Any, Any] = dict.fromkeys(
        [*_compat.mesh_makers(), *_compat.mesh_methods()], _with_values
    )
    swaps |= {
        torch.utils.swap_tensors: _swap,
        torch.Tensor.__format__: _format,
        torch.save: functools.partial(_not_saved, tell),
    }
    values = Values(stepped)
    with swapped(swaps), _compat.fake_set_up(), values:
        yield values


@contextlib.contextmanager
def objects_alone() -> Iterator[None]:
    """Let collectives that read what others sent give back what they get, as the others do."""
    c10d = dist.distributed_c10d
    swaps: dict[Any, Any] = {
        c10d.all_gather_object: _gather_all,
        c10d.gather_object: _gather,
        c10d.broadcast_object_list: lambda *_: None,
        c10d.scatter_object_list: _scatter,
        c10d.monitored_barrier: lambda *_: None,
    }
    with swapped(swaps):
        yield


def _with_values(original: Any, args: Any, kwargs: Any) -> Any:
    with _compat.without_modes():
        return original(*args, **kwargs)


def _swap(original: Any, args: Any, kwargs: Any) -> Any:
    here, there = args
    if not (_compat.is_fake(here) and _compat.is_fake(there)):
        return original(*args, **kwargs)
    with torch.no_grad():
        _compat.set_fake_data(here, there)


def _format(original: Any, args: Any, kwargs: Any) -> Any:
    tensor, spec = args
    if spec and tensor.dim() == 0 and _compat.is_fake(tensor):
        return format(tensor.item(), spec)
    return original(*args, **kwargs)


def _not_saved(tell: Callable[[str], None], original: Any, args: Any, kwargs: Any) -> None:
    where = kwargs.get("f", args[1] if len(args) > 1 else "a file")
    tell(f"torch.save to {where} is left out: nothing has values here")


def _gather_all(original: Any, args: Any, kwargs: Any) -> None:
    into, given = _named(("object_list", "obj"), args, kwargs)
    into[:] = [given] * len(into)


def _gather(original: Any, args: Any, kwargs: Any) -> None:
    given, into = _named(("obj", "object_gather_list"), args, kwargs)
    if into is not None:
        into[:] = [given] * len(into)


def _scatter(original: Any, args: Any, kwargs: Any) -> None:
    into, given = _named(("scatter_object_output_list", "scatter_object_input_list"), args, kwargs)
    if given is not None:
        into[0] = given[dist.get_rank() % len(given)]


def _named(names: tuple[str, str], args: Any, kwargs: Any) -> tuple[Any, Any]:
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get(names[0]), given.get(names[1])
