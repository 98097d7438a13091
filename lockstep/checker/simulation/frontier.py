"""The first forward value that the one-rank program does not explain, on the way to a wrong one."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.checker.simulation.compare import TOLERANCE, group_sum, same
from lockstep.checker.simulation.simulate import Simulation, Values, op_name
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


def in_place(world: World, values: list[Any], whole: torch.Tensor) -> bool:
    """Whether each rank holds the whole one-rank value or an even piece of it, or pending parts."""
    for count in range(len(world.wide) + 1):
        for axes in itertools.combinations(world.wide, count):
            sums = group_sum(world, values, list(axes))
            if all(_is_piece(value, whole) for value in sums):
                return True
    return False


def _is_piece(value: torch.Tensor, whole: torch.Tensor) -> bool:
    if value.shape == whole.shape:
        return same(value, whole)
    if value.dim() != whole.dim():
        return False
    cut = [dim for dim, n in enumerate(value.shape) if n != whole.shape[dim]]
    if len(cut) != 1 or not value.shape[cut[0]] or whole.shape[cut[0]] % value.shape[cut[0]]:
        return False
    return any(same(value, piece) for piece in whole.split(value.shape[cut[0]], cut[0]))


@dataclass(frozen=True)
class Frontier:
    """Where a program parts from its one-rank twin.

    Args:
        row: the earliest unexplained row from which only unexplained ones lead to a wrong row.
        lines: where it may have come from: what lies between that row and those that are explained,
            and from where on elements lie in another order.
    """

    row: int | None = None
    lines: tuple[str, ...] = ()


def frontier(
    many: Simulation, one: Simulation, seen: Values, whole: Values, wrong: list[int]
) -> Frontier:
    """Find where the ranks' values stop being made of the one-rank program's.

    Args:
        seen, whole: the values on all ranks, and on the one.
        wrong: rows that are known to differ.
    """
    pairs = _pairs(many, one)
    good: set[int] = set()
    ordered: set[int] = set()
    for row, partner in pairs.items():
        value = whole[partner][0]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        if explained(many.world, seen[row], value, counted=True):
            good.add(row)
            if in_place(many.world, seen[row], value):
                ordered.add(row)
    first = _first(many, pairs, good, wrong)
    early = _first(many, pairs, ordered, wrong)
    lines = _between(many, pairs, first)
    if early is not None and early != first:
        lines += [many.line(early), *_between(many, pairs, early)]
    own = many.line(first) if first is not None else ""
    return Frontier(first, tuple(line for line in dict.fromkeys(lines) if line and line != own))


def _first(many: Simulation, pairs: dict[int, int], good: set[int], wrong: list[int]) -> int | None:
    """The earliest row that has a partner and is not good, on the ways back from what is wrong."""
    todo, done, first = list(wrong), set(), None
    while todo:
        row = todo.pop()
        if row in done or row in good:
            continue
        done.add(row)
        if row in pairs and _floating(many, row):
            first = row if first is None else min(first, row)
        todo += many.sources(row)
    return first


def _floating(many: Simulation, row: int) -> bool:
    value = many.rows[row][0].meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _between(many: Simulation, pairs: dict[int, int], row: int | None, most: int = 3) -> list[str]:
    """Lines of what has no partner on one rank, as collectives have none, just before a row."""
    found: list[str] = []
    todo, done = ([] if row is None else many.sources(row)), set()
    while todo:
        row = max(todo)
        todo.remove(row)
        if row in done or row in pairs or many.phase[row] == "input":
            continue
        done.add(row)
        found.append(many.line(row))
        todo += many.sources(row)
    return list(dict.fromkeys(line for line in found if line))[:most]


def _pairs(many: Simulation, one: Simulation) -> dict[int, int]:
    """Forward rows of two simulations by line, operator, and which of them it is."""
    left, right = _keyed(many), _keyed(one)
    pairs = {row: right[key] for key, row in left.items() if key in right}
    return {a: b for a, b in pairs.items() if _sort(many, a) == _sort(one, b)}


def _sort(sim: Simulation, row: int) -> tuple[Any, ...]:
    """What a partner has alike: on one rank a line may do less, and its n-th be another."""
    value = sim.rows[row][0].meta.get("val")
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else ()


def _keyed(sim: Simulation) -> dict[tuple[str, str, int], int]:
    seen: dict[tuple[str, str], int] = {}
    found = {}
    for row, nodes in enumerate(sim.rows):
        name = op_name(nodes[0])
        if name == "getitem":  # one of several results
            name = f"{op_name(nodes[0].args[0])} {nodes[0].args[1]}"
        if sim.phase[row] not in ("forward", "after") or not name:
            continue
        key = (sim.line(row), name)
        seen[key] = seen.get(key, 0) + 1
        if not sim.written(row) and row not in sim.overwritten:  # else it holds its result later
            found[(*key, seen[key])] = row
    return found
