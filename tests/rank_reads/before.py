"""Reads of the rank before the step: the step then sees a number of this rank's, as any other.

Each gives a step and its arguments, made on one rank. Where all ranks' numbers follow one formula,
the step is captured with the formula in their place; what follows none is in `before_refused`.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.rank_reads import library

Made = tuple[Callable[..., Any], tuple[Any, ...]]
X = torch.arange(64.0).reshape(16, 4)


class Offset(nn.Module):
    """A layer that takes its offset in its constructor, as Megatron's do."""

    def __init__(self) -> None:
        super().__init__()
        self.start = dist.get_rank() * 4
        self.end = self.start + 4

    def forward(self, x: Tensor) -> Tensor:
        outside = (x < self.start) | (x >= self.end)
        return x[self.start : self.end] + (x - self.start).masked_fill(outside, 0).sum()


class Nested(nn.Module):
    """The same number, in a tuple of a list of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Module()
        self.child.bounds = [(dist.get_rank() * 4, 4)]

    def forward(self, x: Tensor) -> Tensor:
        start, size = self.child.bounds[0]
        return x.narrow(0, start, size) + 1


class Backwards(nn.Module):
    """The last rank has the first rows; a table of ranks by name."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.rows = slice(12 - 4 * dist.get_rank(), 16 - 4 * dist.get_rank())
        self.ranks = OrderedDict(tp=mesh.get_local_rank("tp"), dp=mesh.get_local_rank("dp"))

    def forward(self, x: Tensor) -> Tensor:
        return x[self.rows] * self.ranks["tp"] + self.ranks["dp"]


@dataclass
class Config:
    """A configuration that holds the rank."""

    rank: int
    scale: float = 2.0


@dataclass(frozen=True)
class Frozen:
    """One that can't be changed, and holds another."""

    inner: Config
    ranks: tuple[int, ...] = field(default_factory=lambda: (dist.get_rank(), 7))


@dataclass(slots=True)
class Slotted:
    """One without a dictionary."""

    rank: int


class Pair(NamedTuple):
    """A tuple with names."""

    first: int
    size: int


class Layer(nn.Module):
    """A module that is given what holds the rank."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, x: Tensor) -> Tensor:
        return x * self.config.rank


class Trainer:
    """A user's own object, whose method is the step."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()

    def step(self, x: Tensor) -> Tensor:
        return x * self.rank


class Hidden:
    """One whose value is in no dictionary, and told by a call."""

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


def constructor_backwards(mesh: Any) -> Made:
    return apply, (Backwards(mesh), X.clone())


def argument(mesh: Any) -> Made:
    return (lambda x, rank: x * rank), (X.clone(), dist.get_rank())


def argument_in_a_list(mesh: Any) -> Made:
    return (lambda x, bounds: x[bounds[0] : bounds[1]]), (X, [dist.get_rank(), 4 + dist.get_rank()])


def argument_slice(mesh: Any) -> Made:
    start = 4 * dist.get_rank()
    return (lambda x, rows: x[rows]), (X.clone(), slice(start, start + 4))


def configuration(mesh: Any) -> Made:
    return (lambda x, config: x * config.rank * config.scale), (X.clone(), Config(dist.get_rank()))


def configuration_of_a_layer(mesh: Any) -> Made:
    return apply, (Layer(Config(dist.get_rank())), X.clone())


def configuration_frozen(mesh: Any) -> Made:
    config = Frozen(Config(dist.get_rank()))
    return (lambda x, c: x * c.inner.rank + c.ranks[0] + c.ranks[1]), (X.clone(), config)


def configuration_with_slots(mesh: Any) -> Made:
    return apply, (Layer(Slotted(dist.get_rank())), X.clone())


def namespace(mesh: Any) -> Made:
    return (lambda x, config: x * config.rank), (X.clone(), SimpleNamespace(rank=dist.get_rank()))


def object_with_the_step(mesh: Any) -> Made:
    return Trainer().step, (X.clone(),)


def closure(mesh: Any) -> Made:
    rank = mesh.get_local_rank("tp") + 2 * mesh.get_local_rank("dp")
    return (lambda x: x * rank), (X.clone(),)


def closure_of_a_helper(mesh: Any) -> Made:
    pair = Pair(2 * dist.get_rank(), 2)

    def cut(x: Tensor) -> Tensor:
        return x[pair.first : pair.first + pair.size]

    return (lambda x: cut(x) * 2), (X.clone(),)


def closure_without_a_dictionary(mesh: Any) -> Made:
    hidden = Hidden()
    return (lambda x: x * hidden()), (X.clone(),)


def partial_arguments(mesh: Any) -> Made:
    times = functools.partial(_times, dist.get_rank() + 1, offset=dist.get_rank() * 3)
    return (lambda x: times(x)), (X.clone(),)


def _times(factor: int, x: Tensor, offset: int) -> Tensor:
    return x * factor + offset


def method_in_a_closure(mesh: Any) -> Made:
    scale = Trainer().step
    return (lambda x: scale(x) + 1), (X.clone(),)


def default_argument(mesh: Any) -> Made:
    def step(x: Tensor, scale: float = 2.0, rank: int = dist.get_rank()) -> Tensor:
        return x * rank * scale

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


def global_table(mesh: Any) -> Made:
    TABLE["rank"] = [dist.get_rank()]
    return _by_table, (X.clone(),)


def _by_table(x: Tensor) -> Tensor:
    return x * TABLE["rank"][0]


def class_attribute(mesh: Any) -> Made:
    class Ranked(nn.Module):
        rank = dist.get_rank()

        def forward(self, x: Tensor) -> Tensor:
            return x * self.rank

    return apply, (Ranked(), X.clone())


def beside_a_read_inside(mesh: Any) -> Made:
    rank = dist.get_rank()
    return (lambda x: x[4 * dist.get_rank() : 4 * rank + 4] * (1 + rank)), (X.clone(),)


def its_constructor(mesh: Any) -> Made:
    """A layer of a package that keeps its own bounds, as Megatron's embedding does."""
    return apply, (library.EarlyEmbedding(16, 4), torch.arange(16).reshape(4, 4))


RANK = 0
TABLE: dict[str, list[int]] = {}
FORMS: list[Callable[[Any], Made]] = [
    constructor, constructor_nested, constructor_backwards, argument, argument_in_a_list,
    argument_slice, configuration, configuration_of_a_layer, configuration_frozen,
    configuration_with_slots, namespace, object_with_the_step, closure, closure_of_a_helper,
    closure_without_a_dictionary, partial_arguments, method_in_a_closure,
    default_argument, keyword_default, global_variable, global_table, class_attribute,
    beside_a_read_inside, its_constructor,
]  # fmt: skip
