"""Collectives on logical axis names: what a graph holds, and what eager code may call.

Each starts at once and is waited for by `wait`, so that several can be in flight.
"""

from __future__ import annotations

import torch

from lockstep import _compat

REDUCTIONS = ("sum", "avg", "max", "min", "product", "band", "bor", "bxor")


def all_reduce(x: torch.Tensor, op: str, axis: str) -> torch.Tensor:
    """Start a reduction over an axis; every rank gets the result in a new tensor after `wait`."""
    return _compat.functional_collectives().all_reduce(x.contiguous(), op, axis)


def all_gather(x: torch.Tensor, size: int, axis: str) -> torch.Tensor:
    """Start gathering every rank's `x` along dimension 0, in the order of the axis' coordinates.

    Scalars are gathered as rows of one: gloo refuses what has no dimension 0.
    """
    x = x if x.dim() else x.reshape(1)
    return _compat.functional_collectives().all_gather_into_tensor(x.contiguous(), size, axis)


def reduce_scatter(x: torch.Tensor, op: str, size: int, axis: str) -> torch.Tensor:
    """Start a reduction of which each rank keeps its own slice of dimension 0."""
    return _compat.functional_collectives().reduce_scatter_tensor(x.contiguous(), op, size, axis)


def all_to_all(
    x: torch.Tensor, output_splits: list[int], input_splits: list[int], axis: str
) -> torch.Tensor:
    """Start an exchange of slices of dimension 0; the splits say how many rows go and come."""
    ops = _compat.functional_collectives()
    return ops.all_to_all_single(x.contiguous(), output_splits, input_splits, axis)


def broadcast(x: torch.Tensor, source: int, axis: str) -> torch.Tensor:
    """Start sending the tensor of the rank at coordinate `source` to the whole axis."""
    return _compat.functional_collectives().broadcast(x.contiguous(), source, axis)


def wait(x: torch.Tensor) -> torch.Tensor:
    """Return a started collective's result once it is there."""
    return _compat.functional_collectives().wait_tensor(x)
