"""The first forward value that the one-rank program does not explain, on the way to a wrong one."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import torch

from lockstep.checker.compare import TOLERANCE, group_sum
from lockstep.checker.simulate import Simulation, Values, op_name
from lockstep.checker.world import World


def explained(world: World, values: list[Any], whole: torch.Tensor, counted: bool = False) -> bool:
    """Whether the ranks' values are made of a one-rank value's elements, or of parts of them.

    Elements may lie in any order; they may be sums or means that are pending along some axes.

    Args:
        counted: no rank may hold an element more often than the one-rank value.
    """
    inside = functools.partial(_inside, counted=counted)
    sorted_ = whole.flatten().sort().values
    if not whole.is_floating_point():
        return True
    for count in range(len(world.wide) + 1):
        for axes in itertools.combinations(world.wide, count):
            if axes and len({value.shape for value in values}) > 1:
                continue  # uneven shards are no terms of a sum
            sums = group_sum(world, values, list(axes))
            if all(inside(value, sorted_) for value in sums):
                return True
            share = math.prod(world.mesh[axis] for axis in axes)
            if axes and all(inside(value / share, sorted_) for value in sums):
                return True
    return False


def _inside(value: torch.Tensor, sorted_: torch.Tensor, counted: bool = False) -> bool:
    if not value.numel():
        return True
    if not sorted_.numel():
        return False
    flat = value.flatten()
    tolerance = TOLERANCE * max(sorted_.abs().max().item(), 1e-12)
    at = torch.searchsorted(sorted_, flat)
    above = (sorted_[at.clamp(max=len(sorted_) - 1)] - flat).abs()
    below = (sorted_[(at - 1).clamp(min=0)] - flat).abs()
    if not torch.minimum(above, below).max() <= tolerance:
        return False
    if not counted:
        return True
    mine = _times(flat.sort().values, flat, tolerance)
    return bool((mine <= _times(sorted_, flat, 2 * tolerance)).all())


def _times(sorted_: torch.Tensor, values: torch.Tensor, tolerance: float) -> torch.Tensor:
    """How often each value occurs."""
    first = torch.searchsorted(sorted_, values - tolerance)
    return torch.searchsorted(sorted_, values + tolerance, right=True) - first


def frontier(
    many: Simulation, one: Simulation, seen: Values, whole: Values, wrong: list[int]
) -> int | None:
    """The earliest unexplained row from which only unexplained ones lead to a wrong row.

    Args:
        seen, whole: the values on all ranks, and on the one.
        wrong: rows that are known to differ.
    """
    pairs = _pairs(many, one)
    good: set[int] = set()
    bad: set[int] = set()
    for row, partner in pairs.items():
        value = whole[partner][0]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            (good if explained(many.world, seen[row], value, counted=True) else bad).add(row)
    todo, done, first = list(wrong), set(), None
    while todo:
        row = todo.pop()
        if row in done or row in good:
            continue
        done.add(row)
        if row in bad:
            first = row if first is None else min(first, row)
        todo += many.sources(row)
    return first


def _pairs(many: Simulation, one: Simulation) -> dict[int, int]:
    """Forward rows of two simulations by line, operator, and which of them it is."""
    left, right = _keyed(many), _keyed(one)
    return {row: right[key] for key, row in left.items() if key in right}


def _keyed(sim: Simulation) -> dict[tuple[str, str, int], int]:
    seen: dict[tuple[str, str], int] = {}
    found = {}
    for row, nodes in enumerate(sim.rows):
        name = op_name(nodes[0])
        if sim.phase[row] not in ("forward", "after") or name in ("", "getitem"):
            continue
        if sim.written(row):
            continue  # holds its result only later
        key = (sim.line(row), name)
        seen[key] = seen.get(key, 0) + 1
        found[(*key, seen[key])] = row
    return found
