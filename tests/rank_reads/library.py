"""What a package of someone else's does with the rank: state of its own, helpers, layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

_GROUP: Any = None


def initialize(group: Any) -> None:
    """Keep the group that the package's layers work in."""
    global _GROUP
    _GROUP = group


def parallel_rank() -> int:
    return dist.get_rank(_GROUP)


def parallel_size() -> int:
    return dist.get_world_size(_GROUP)


def shard(x: Tensor, dim: int = 0) -> Tensor:
    """This rank's part of a tensor that all ranks hold."""
    return torch.chunk(x, parallel_size(), dim)[parallel_rank()].contiguous()


def vocabulary_range(per_rank: int) -> tuple[int, int]:
    first = parallel_rank() * per_rank
    return first, first + per_rank


class VocabEmbedding(nn.Module):
    """Rows of a table, of which each rank holds its part; the parts' results are added up."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.rows = rows // parallel_size()
        self.weight = nn.Parameter(torch.arange(self.rows * width, dtype=torch.float32))

    def forward(self, ids: Tensor) -> Tensor:
        first, end = vocabulary_range(self.rows)
        outside = (ids < first) | (ids >= end)
        local = (ids - first).masked_fill(outside, 0)
        found = F.embedding(local, self.weight.view(self.rows, -1))
        found = found.masked_fill(outside[..., None], 0.0)
        dist.all_reduce(found, group=_GROUP)
        return found


class EarlyEmbedding(nn.Module):
    """The same, with its bounds kept by its constructor."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        rows = rows // parallel_size()
        self.vocab_start_index, self.vocab_end_index = vocabulary_range(rows)
        self.weight = nn.Parameter(torch.arange(rows * width, dtype=torch.float32).view(rows, -1))

    def forward(self, ids: Tensor) -> Tensor:
        outside = (ids < self.vocab_start_index) | (ids >= self.vocab_end_index)
        local = ids.clone() - self.vocab_start_index
        local[outside] = 0
        found = F.embedding(local, self.weight).masked_fill(outside[..., None], 0.0)
        dist.all_reduce(found, group=_GROUP)
        return found


def is_main() -> bool:
    return parallel_rank() == 0


def on_main(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as loggers have it."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args) if is_main() else args[0]  # the line

    return wrapped


@on_main
def scaled(x: Tensor) -> Tensor:
    return x * 2


def name_of_shard() -> str:
    return f"shard_{parallel_rank()}"  # the line


# ---- what steps make of it: portable ones, then refused ones with their text and the place


def its_rank(x: Tensor, mesh: Any) -> Tensor:
    return x * (parallel_rank() + 1)


def its_shard(x: Tensor, mesh: Any) -> Tensor:
    return shard(x) + shard(x, 1).sum()


def its_embedding(x: Tensor, mesh: Any) -> Tensor:
    first, end = vocabulary_range(8)
    return x[first:end] * 2


def its_decorator(x: Tensor, mesh: Any) -> Tensor:
    return scaled(x)


def its_names(x: Tensor, mesh: Any) -> Tensor:
    return x * {"shard_0": 2.0, "shard_1": 3.0}[name_of_shard()]
