"""Data parallelism: the gradients of parameters that every rank holds are added up, in buckets."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lockstep.spmd.signature import types_of
from lockstep.spmd.typed_collectives import all_reduce
from lockstep.spmd.types import I, P

MIB = 2**20


def reduce_grads(model: nn.Module, *, bucket_mib: float = 25.0) -> None:
    """Add up gradients over every axis along which their parameter is R; call it once a step.

    A parameter that is I or a shard has its whole gradient already. Collective over those axes.

    Args:
        model: placed; its `.grad` are replaced.
        bucket_mib: how much is reduced at once.
    """
    with torch.no_grad():
        for axes, bucket in _buckets(model, int(bucket_mib * MIB)):
            flat = torch.cat([grad.reshape(-1) for _, grad in bucket])
            for axis in axes:
                flat = all_reduce(flat, axis, src=P, dst=I)
            parts = flat.split([grad.numel() for _, grad in bucket])
            for (parameter, grad), part in zip(bucket, parts, strict=True):
                parameter.grad = part.view(grad.shape)


Bucket = list[tuple[nn.Parameter, Tensor]]


def _buckets(model: nn.Module, limit_bytes: int) -> Iterator[tuple[tuple[str, ...], Bucket]]:
    """Gradients that lie alike, in the order in which the backward has made them."""
    alike: dict[object, Bucket] = {}
    for parameter in reversed(list(model.parameters())):
        types, grad = types_of(parameter), parameter.grad
        axes = tuple(axis for axis, kind in types.items() if kind.kind == "R")
        if grad is None or not axes:
            continue
        key = axes, grad.dtype, tuple(types.items())
        bucket = alike.setdefault(key, [])
        bucket.append((parameter, grad))
        if sum(grad.numel() * grad.element_size() for _, grad in bucket) >= limit_bytes:
            yield axes, alike.pop(key)
    for bucket in alike.values():
        types = types_of(bucket[0][0])
        yield tuple(axis for axis, kind in types.items() if kind.kind == "R"), bucket
