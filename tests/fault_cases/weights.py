"""Parameters that are the same numbers in any layout, with the attributes that Megatron gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def drawn(name: str, *shape: int) -> torch.Tensor:
    """Return the whole tensor of a name, the same on every rank."""
    seed = sum(at * ord(letter) for at, letter in enumerate(name, 7))
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64) * 0.3


def shard(name: str, mesh: Any, dim: int, *shape: int, axis: str = "tp") -> nn.Parameter:
    """Return this rank's part of a weight along a dimension."""
    parts = drawn(name, *shape).chunk(mesh[axis].size(), dim)
    weight = nn.Parameter(parts[mesh.get_local_rank(axis)].clone())
    weight.tensor_model_parallel, weight.partition_dim = True, dim  # type: ignore[attr-defined]
    return weight


def replicated(name: str, *shape: int, sequence_parallel: bool = False) -> nn.Parameter:
    """Return a weight that every rank holds."""
    weight = nn.Parameter(drawn(name, *shape))
    weight.tensor_model_parallel = False  # type: ignore[attr-defined]
    weight.sequence_parallel = sequence_parallel  # type: ignore[attr-defined]
    return weight


def ones(name: str, *shape: int, sequence_parallel: bool = False) -> nn.Parameter:
    """Return a weight near one that every rank holds."""
    weight = replicated(name, *shape, sequence_parallel=sequence_parallel)
    with torch.no_grad():
        weight += 1
    return weight
