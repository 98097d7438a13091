"""Caches are looked through for numbers of a trace, whatever else they hold."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lockstep.capture.capture import capture
from lockstep.checker.world import simulated_rank
from lockstep.errors import CaptureError


class Answers:
    """As torch.classes does: any attribute is there, and the next one raises."""

    def __getattr__(self, name: str) -> Any:
        if name == "node":
            return self
        raise RuntimeError(f"tried to make {name}")


@functools.lru_cache
def odd() -> tuple[Any, ...]:
    return torch.classes, Answers()


@functools.lru_cache
def rank() -> int:
    return dist.get_rank()


def test_what_else_a_cache_holds_is_let_be() -> None:
    held = odd()
    with simulated_rank(1, {"tp": 2}) as mesh:
        graph = capture(lambda x, mesh: x * dist.get_rank(), torch.ones(2), mesh)
    assert odd() is held and "coordinate" in graph.gm.code


def test_a_rank_in_a_cache_is_refused() -> None:
    with simulated_rank(1, {"tp": 2}) as mesh, pytest.raises(CaptureError, match="in a cache"):
        capture(lambda x, mesh: x * rank(), torch.ones(2), mesh)
