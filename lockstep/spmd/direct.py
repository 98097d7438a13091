"""The collectives of `lockstep.spmd.collectives`, done at once: for eager code, unwatched.

Through an operator, as a graph holds them, an eager call would pay the dispatcher, and an even
all-to-all would be an uneven one. The group's own methods cost less than `torch.distributed`'s
functions, which makes up for what a typed collective adds.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from lockstep.spmd.mesh import axis as axis_named


def _options(op: dist.ReduceOp.RedOpType) -> dist.AllreduceOptions:
    """A group's own argument: given a ReduceOp, its method first tries whether that is one."""
    made = dist.AllreduceOptions()
    made.reduceOp = op
    return made


OPTIONS = {
    "sum": _options(dist.ReduceOp.SUM),
    "max": _options(dist.ReduceOp.MAX),
    "min": _options(dist.ReduceOp.MIN),
}


def all_reduce(x: torch.Tensor, op: str, axis: str) -> torch.Tensor:
    """Reduce into a new tensor."""
    out = x.clone(memory_format=torch.contiguous_format)
    axis_named(axis).group.allreduce([out], OPTIONS[op]).wait()
    return out


def all_gather(x: torch.Tensor, size: int, axis: str) -> torch.Tensor:
    """Gather along dimension 0 into a new tensor."""
    out = x.new_empty((size * x.shape[0], *x.shape[1:]))
    axis_named(axis).group.all_gather_single(out, x.contiguous()).wait()
    return out


def reduce_scatter(x: torch.Tensor, op: str, size: int, axis: str) -> torch.Tensor:
    """Sum, and keep this rank's slice of dimension 0 in a new tensor."""
    out = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    axis_named(axis).group.reduce_scatter_single(out, x.contiguous()).wait()
    return out


def all_to_all(
    x: torch.Tensor, output_splits: list[int], input_splits: list[int], axis: str
) -> torch.Tensor:
    """Exchange slices of dimension 0 into a new tensor."""
    if len({*output_splits, *input_splits}) == 1:
        output_splits, input_splits = [], []
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    else:
        out = x.new_empty((sum(output_splits), *x.shape[1:]))
    group = axis_named(axis).group
    group.all_to_all_single(out, x.contiguous(), output_splits, input_splits).wait()
    return out


def broadcast(x: torch.Tensor, source: int, axis: str) -> torch.Tensor:
    """Send the tensor of the rank at coordinate `source`, into a new one."""
    out = x.clone(memory_format=torch.contiguous_format)
    axis_named(axis).group.broadcast(out, source).wait()
    return out


def wait(x: torch.Tensor) -> torch.Tensor:
    """Return a result, which is there."""
    return x
