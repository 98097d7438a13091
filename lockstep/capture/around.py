"""What is around a trace so that it runs as eager does, and leaves the user's streams alone."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.autograd.profiler import record_function

from lockstep.capture.hooks import swapped


@contextlib.contextmanager
def as_eager() -> Any:
    """All that lets a step run on stand-ins as it does without a trace."""
    with autocast_as_eager(), unprofiled():
        yield


@contextlib.contextmanager
def unprofiled() -> Any:
    """Names for a profiler, as in DDP's forward, are objects that no graph can keep: left out."""
    ends: dict[Any, Any] = {record_function.__enter__: _entered, record_function.__exit__: _left}
    with swapped(ends):
        yield


def _entered(original: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _left(original: Any, args: Any, kwargs: Any) -> None:
    """Leave no mark."""


@contextlib.contextmanager
def without_mkldnn() -> Any:
    """A check computes in float64, which the CPU's library for LSTMs does not."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.set_flags(False, None, None, None)
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before, None, None, None)


@contextlib.contextmanager
def quiet_random() -> Any:
    """Tracing draws nothing from the user's streams."""
    with torch.random.fork_rng(devices=[]):
        yield


@contextlib.contextmanager
def autocast_as_eager() -> Any:
    """Cast a weight once per autocast region, as eager does; tracing turns that cache off."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(before)
