"""When two numbers of a check are the same; sums over groups of ranks; how a wrong one is wrong."""

from __future__ import annotations

import math
from typing import Any

import torch

from lockstep.checker.world import World

TOLERANCE = 1e-8


def same(a: Any, b: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two values agree, to a part of the larger one's largest element."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return bool((a == b).all())
    if torch.equal(a, b):
        return True
    apart = (a - b).abs().max().item()
    if not math.isfinite(apart):
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    scale = max(a.abs().max().item(), b.abs().max().item(), 1e-12)
    return apart <= tolerance * scale


def same_along(world: World, values: list[Any], axis: str) -> bool:
    """Whether the ranks of each group along an axis hold the same value."""
    return all(same(values[g[0]], values[r]) for g in world.groups([axis]) for r in g[1:])


def equal_axes(world: World, values: list[Any]) -> list[str]:
    """The axes along which all ranks hold the same value."""
    return [axis for axis in world.wide if same_along(world, values, axis)]


def group_sum(world: World, values: list[Any], over: list[str]) -> list[Any]:
    """On each rank, the sum of the values of its group over some axes.

    Uneven shards are no terms of a sum: where shapes differ, each rank keeps its own.
    """
    if not over:
        return list(values)
    found: list[Any] = [None] * len(values)
    for group in world.groups(over):
        if len({getattr(values[rank], "shape", None) for rank in group}) > 1:
            for rank in group:
                found[rank] = values[rank]
            continue
        total = sum(values[rank] for rank in group[1:]) + values[group[0]]
        for rank in group:
            found[rank] = total
    return found


def is_zero(values: list[torch.Tensor]) -> bool:
    """Whether all elements on all ranks are zero."""
    return not any(bool(value.any()) for value in values)


def relation(got: torch.Tensor, true: torch.Tensor) -> str:
    """How a wrong value relates to the right one, in a few words."""
    if got.shape != true.shape:
        return f"of shape {list(got.shape)}, not {list(true.shape)}"
    size, wanted = got.norm().item(), true.norm().item()
    if wanted < 1e-12:
        return "not 0, as it should be"
    if size < 1e-12:
        return "0"
    factor = (got * true).sum().item() / wanted**2
    if (got - factor * true).norm().item() < 1e-7 * size:
        return f"{factor:.4g} times the true one"
    return "no multiple of the true one"


def factor_of(got: torch.Tensor, true: torch.Tensor) -> float | None:
    """The one number that takes the right value to the one found; None if there is none."""
    wanted = (true * true).sum().item()
    if wanted < 1e-24 or got.shape != true.shape:
        return None
    factor = (got * true).sum().item() / wanted
    return factor if same(got, factor * true, 1e-7) else None
