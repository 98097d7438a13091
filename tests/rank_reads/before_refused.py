"""Reads of the rank before the step that no formula of the coordinates gives, and what is decided
by one that has a formula: refused, with what each rank has, at the line that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor, nn

from tests.rank_reads.before import Hidden, Made, X, apply

FORMS: list[tuple[Callable[[Any], Made], str, Any]] = []
NO_FORMULA = "differs between the ranks of"
DIFFERS = "differ in"
GRAPHS = "capture different graphs"


def refused(text: str, place: Any) -> Callable[[Callable[[Any], Made]], Callable[[Any], Made]]:
    def add(make: Callable[[Any], Made]) -> Callable[[Any], Made]:
        FORMS.append((make, text, place))
        return make

    return add


class Start(nn.Module):
    """A layer that starts where its constructor was told."""

    def __init__(self, start: Any) -> None:
        super().__init__()
        self.start = start

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(0, self.start, 1)  # the line


@refused(NO_FORMULA, Start.forward)
def one_rank_in_the_middle(mesh: Any) -> Made:
    return apply, (Start(int(dist.get_rank() == 2)), X.clone())


@refused(NO_FORMULA, Start.forward)
def product(mesh: Any) -> Made:
    return apply, (Start(mesh.get_local_rank("dp") * mesh.get_local_rank("tp")), X.clone())


@refused(NO_FORMULA, Start.forward)
def power_of_two(mesh: Any) -> Made:
    return apply, (Start(2 ** dist.get_rank()), X.clone())


@refused(NO_FORMULA, Start.forward)
def looked_up(mesh: Any) -> Made:
    return apply, (Start([0, 3, 1, 2][dist.get_rank()]), X.clone())


@refused(DIFFERS, Start.forward)
def only_some_have_it(mesh: Any) -> Made:
    return apply, (Start(dist.get_rank() or None), X.clone())


class Role(IntEnum):
    """What a rank is."""

    FIRST = 0
    SECOND = 1


class Actor(nn.Module):
    """A layer that compares its role by identity."""

    def __init__(self, role: Role) -> None:
        super().__init__()
        self.role = role

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.role is Role.FIRST else x  # the line


@refused("cannot be followed", None)
def member_of_an_enumeration(mesh: Any) -> Made:
    return apply, (Actor(Role(mesh.get_local_rank("tp"))), X.clone())


class Flag(nn.Module):
    """A layer that only the first rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dist.get_rank() == 0

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.first else x  # the line


@refused("rank 0 differs in module model.first", Flag.forward)
def constructor_flag(mesh: Any) -> Made:
    return apply, (Flag(), X.clone())


class Scaled(nn.Module):
    """A layer with a fraction of the rank, and the rank."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.scale = dist.get_rank(), dist.get_rank() / 2

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.rank  # the line


@refused(DIFFERS, Scaled.forward)
def constructor_fraction(mesh: Any) -> Made:
    return apply, (Scaled(), X.clone())


class Named(nn.Module):
    """A layer that knows its rank by name."""

    def __init__(self) -> None:
        super().__init__()
        self.label = f"rank{dist.get_rank()}"

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.label == "rank0" else x  # the line


@refused(DIFFERS, Named.forward)
def constructor_text(mesh: Any) -> Made:
    return apply, (Named(), X.clone())


class Branch(nn.Module):
    """A layer that decides by what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = dist.get_rank()

    def forward(self, x: Tensor) -> Tensor:
        if self.stage == 0:  # the line
            x = x * 2
        return x


@refused("the step branches on its rank", Branch.forward)
def constructor_branch(mesh: Any) -> Made:
    return apply, (Branch(), X.clone())


class Loop(Branch):
    """A layer that counts up to what was read."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.stage):  # the line
            x = x * 2
        return x


@refused("the step turns its rank into a Python number", Loop.forward)
def constructor_loop(mesh: Any) -> Made:
    return apply, (Loop(), X.clone())


class Keyed(Branch):
    """A layer that looks up by what was read."""

    def forward(self, x: Tensor) -> Tensor:
        return x * {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}[self.stage]  # the line


@refused("the step looks something up by its rank", Keyed.forward)
def constructor_key(mesh: Any) -> Made:
    return apply, (Keyed(), X.clone())


class Counting(Branch):
    """A layer that counts on from what was read."""

    def forward(self, x: Tensor) -> Tensor:
        self.stage += 1  # the line
        return x * self.stage


@refused("the step changes Python state: model.stage", Counting.forward)
def constructor_counter(mesh: Any) -> Made:
    return apply, (Counting(), X.clone())


@refused(DIFFERS, Start.forward)
def numpy_number(mesh: Any) -> Made:
    return apply, (Start(np.int64(dist.get_rank())), X.clone())


@functools.lru_cache
def _cached() -> int:
    return dist.get_rank()


def _by_cache(x: Tensor) -> Tensor:
    return x * _cached()  # the line


@refused(GRAPHS, _by_cache)
def cached(mesh: Any) -> Made:
    _cached.cache_clear()
    _cached()
    return _by_cache, (X.clone(),)


@refused("which holds what a capture cannot see", None)
def hidden_object(mesh: Any) -> Made:
    return (lambda x, value: x * value()), (X.clone(), Hidden())
