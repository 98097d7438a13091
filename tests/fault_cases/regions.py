"""Hand-written autograd Functions around torch's own collectives, as large models have them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function


def reduced(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum over the group's ranks."""
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


def gathered(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the ranks' rows, one after the other."""
    rows = x.shape[0] * dist.get_world_size(group)
    y = torch.empty(rows, *x.shape[1:], dtype=x.dtype)
    dist.all_gather_into_tensor(y, x.contiguous(), group=group)
    return y


def scattered(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's rows of the sum."""
    rows = x.shape[0] // dist.get_world_size(group)
    y = torch.empty(rows, *x.shape[1:], dtype=x.dtype)
    dist.reduce_scatter_tensor(y, x.contiguous(), group=group)
    return y


def own_rows(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's rows."""
    return x.chunk(dist.get_world_size(group))[dist.get_rank(group)].contiguous()


class Copy(Function):
    """Into a region where ranks do different work: each adds its part of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return reduced(grad, ctx.group), None


class Reduce(Function):
    """Out of such a region: the parts are added up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class ReduceBothWays(Function):
    """Wrong after a region: the gradient is whole already, and is added up again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return reduced(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return reduced(grad, ctx.group), None


class GatherRows(Function):
    """Into a region from rows that are spread over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return scattered(grad, ctx.group), None


class GatherRowsOwnGradient(Function):
    """Wrong before a region: the other ranks' parts of the gradient are dropped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return own_rows(grad, ctx.group), None


class ScatterRows(Function):
    """Out of a region, to rows that are spread over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, ctx.group), None
