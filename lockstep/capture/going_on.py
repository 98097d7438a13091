"""Inside a collecting capture: stand-ins for what an ordinary capture stops at.

A tensor from outside becomes an empty one of its shape; a decision on a tensor's value takes one
side. Both are refused at the user's line first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.obstacles import is_outside_tensor, is_value_read, real_tensor, value_read
from lockstep.capture.origin import is_user_file, line_of, user_frame
from lockstep.capture.refusal import Obstacles, collector

# What Python calls to decide by a tensor, and what it gets; a branch takes a side.
_READS: dict[str, Any] = {"__bool__": True, "__int__": 1, "__index__": 1, "__float__": 1.0}


@contextlib.contextmanager
def going_on() -> Iterator[None]:
    """Go on at what has a stand-in, where obstacles are collected; else nothing."""
    obstacles = collector()
    if obstacles is None:
        yield
        return
    with swapped(_symbol_reads(obstacles)), _StandIns(obstacles):
        yield


class _StandIns(TorchFunctionMode):
    """Every torch function is tried as it is; what stops it is refused, and it is tried again."""

    def __init__(self, obstacles: Obstacles) -> None:
        super().__init__()
        self._obstacles = obstacles
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as error:
            frame = user_frame(sys._getframe(1))
            name = getattr(func, "__name__", "")
            if name in _READS and is_value_read(error):
                return _read(self._obstacles, frame, name)
            if not is_outside_tensor(error):
                raise
            return func(*self._inside(args, frame), **self._inside(kwargs, frame))

    def _inside(self, tree: Any, frame: FrameType | None) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: self._stand_in(t, frame), tree)

    def _stand_in(self, tensor: torch.Tensor, frame: FrameType | None) -> torch.Tensor:
        if _compat.is_fake(tensor):
            return tensor
        if id(tensor) not in self._made:
            refused = real_tensor(frame, frame.f_lineno if frame else 0, tensor)
            self._obstacles.add(refused, about=tensor)
            made = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
            self._made[id(tensor)] = tensor, made.requires_grad_(tensor.requires_grad)
        return self._made[id(tensor)][1]


def _symbol_reads(obstacles: Obstacles) -> dict[FunctionType, Callable[..., Any]]:
    """`if x.item() > 3`: the decision is asked of a symbol, not of a tensor."""
    swaps: dict[FunctionType, Callable[..., Any]] = {}
    for kind in (torch.SymBool, torch.SymInt, torch.SymFloat):
        for name in _READS:
            method = vars(kind).get(name)
            if isinstance(method, FunctionType):
                swaps[method] = _symbol_read(obstacles, name)
    return swaps


def _symbol_read(obstacles: Obstacles, name: str) -> Callable[..., Any]:
    def read(original: Any, args: Any, kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            frame = caller_frame()
            users = frame is not None and is_user_file(frame.f_code.co_filename)
            if not users or not is_value_read(error):
                raise
            return _read(obstacles, frame, name)

    return read


def _read(obstacles: Obstacles, frame: FrameType | None, name: str) -> Any:
    obstacles.add(value_read(frame, frame.f_lineno if frame else 0))
    return obstacles.side(line_of(frame)) if name == "__bool__" else _READS[name]
