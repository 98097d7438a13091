"""What is around a trace so that it runs as eager does, and leaves the user's streams alone."""

from __future__ import annotations

import contextlib
from typing import Any

import torch


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
