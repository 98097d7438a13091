"""Reads of the rank before the step: the step then sees a number of this rank's, as any other.

Each gives a step and its arguments, made on one rank. The ranks' fingerprints tell most of them
apart before anything is built; what no fingerprint covers, a trace on a second rank tells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Made = tuple[Callable[..., Any], tuple[Any, ...]]
X = torch.arange(64.0).reshape(16, 4)


class Offset(nn.Module):
    """A layer that takes its offset in its constructor, as Megatron's do."""

    def __init__(self) -> None:
        super().__init__()
        self.start = dist.get_rank() * 4

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(0, self.start, 4) + 1


class Nested(nn.Module):
    """The same number, in a tuple of a list of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Module()
        self.child.bounds = [(dist.get_rank() * 4, 4)]

    def forward(self, x: Tensor) -> Tensor:
        start, size = self.child.bounds[0]
        return x.narrow(0, start, size) + 1


class Flag(nn.Module):
    """A layer that only the first rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dist.get_rank() == 0

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.first else x


@dataclass
class Config:
    """A configuration that holds the rank."""

    rank: int
    scale: float = 2.0


class Hidden:
    """An object whose value no attribute tells."""

    __slots__ = ("_rank",)

    def __init__(self) -> None:
        self._rank = dist.get_rank()

    def __call__(self) -> int:
        return self._rank


def apply(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model(x)


def constructor(mesh: Any) -> Made:
    return apply, (Offset(), X.clone())


def constructor_nested(mesh: Any) -> Made:
    return apply, (Nested(), X.clone())


def constructor_flag(mesh: Any) -> Made:
    return apply, (Flag(), X.clone())


def argument(mesh: Any) -> Made:
    return (lambda x, rank: x * rank), (X.clone(), dist.get_rank())


def configuration(mesh: Any) -> Made:
    return (lambda x, config: x * config.rank * config.scale), (X.clone(), Config(dist.get_rank()))


def namespace(mesh: Any) -> Made:
    return (lambda x, config: x * config.rank), (X.clone(), SimpleNamespace(rank=dist.get_rank()))


def closure(mesh: Any) -> Made:
    rank = mesh.get_local_rank("tp") + 2 * mesh.get_local_rank("dp")
    return (lambda x: x * rank), (X.clone(),)


def default_argument(mesh: Any) -> Made:
    def step(x: Tensor, rank: int = dist.get_rank()) -> Tensor:
        return x * rank

    return step, (X.clone(),)


def keyword_default(mesh: Any) -> Made:
    def step(x: Tensor, *, rank: int = dist.get_rank()) -> Tensor:
        return x * rank

    return step, (X.clone(),)


def global_variable(mesh: Any) -> Made:
    global RANK
    RANK = dist.get_rank()
    return _by_global, (X.clone(),)


def _by_global(x: Tensor) -> Tensor:
    return x * RANK


def cached(mesh: Any) -> Made:
    _cached.cache_clear()
    _cached()
    return _by_cache, (X.clone(),)


@functools.lru_cache
def _cached() -> int:
    return dist.get_rank()


def _by_cache(x: Tensor) -> Tensor:
    return x * _cached()


def hidden_object(mesh: Any) -> Made:
    hidden = Hidden()
    return (lambda x, value: x * value()), (X.clone(), hidden)


def class_attribute(mesh: Any) -> Made:
    class Layer(nn.Module):
        rank = dist.get_rank()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.rank

    return apply, (Layer(), X.clone())


RANK = 0
FORMS: list[Callable[[Any], Made]] = [
    constructor, constructor_nested, constructor_flag, argument, configuration, namespace, closure,
    default_argument, keyword_default, global_variable, cached, hidden_object, class_attribute,
]  # fmt: skip
