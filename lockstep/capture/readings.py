"""Reads of a tensor's bytes or of its place in memory by user code, refused at their line.

A stand-in has neither. What torch makes up for one (address 0), or says of it, helps nobody.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.obstacles import value_read
from lockstep.capture.origin import is_user_file, line_of
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_READINGS = ("data_ptr", "numpy", "__array__")


@contextlib.contextmanager
def refusing_readings() -> Iterator[None]:
    """Refuse reads of a stand-in's memory and bytes while inside; other tensors give theirs."""
    kind = _compat.fake_tensor_type()
    before = {name: vars(kind).get(name) for name in _READINGS}
    for name in _READINGS:
        setattr(kind, name, _reading(name))
    try:
        yield
    finally:
        for name, own in before.items():
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _reading(name: str) -> Any:
    """The method of that name: refused where user code asks, torch's own where torch does."""
    original = getattr(torch.Tensor, name)

    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if not is_user_file(frame.f_code.co_filename):
            return original(self, *args, **kwargs)
        refuse(_address(frame) if name == "data_ptr" else value_read(frame, frame.f_lineno))
        return _made_up(name, self)

    return method


def _address(frame: FrameType) -> CaptureError:
    return CaptureError(
        "the step reads where a tensor lies in memory: data_ptr()",
        where=line_of(frame),
        why="the address differs between ranks and runs, and one program must fit all of them",
        fix="compare tensors by `is`, or do it outside the step",
    )


def _made_up(name: str, tensor: torch.Tensor) -> Any:
    """What a capture that collects obstacles goes on with."""
    if name == "data_ptr":
        return 0
    with _compat.without_modes():
        return torch.zeros([int(size) for size in tensor.shape], dtype=tensor.dtype).numpy()
