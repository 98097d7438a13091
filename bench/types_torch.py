"""What torch's public functions are right now, so that a patch of any of them shows."""

from __future__ import annotations

import types
from typing import Any


def snapshot() -> dict[str, tuple[int, int]]:
    """Return by name the identity of each function of torch and, of Python ones, of its code."""
    import torch
    import torch.distributed
    import torch.nn.functional

    holders: list[Any] = [
        torch, torch.Tensor, torch.nn.functional, torch.nn.Module, torch.nn.Parameter,
        torch.autograd, torch.autograd.Function, torch.autograd.graph.Node, torch.distributed,
        torch.distributed.distributed_c10d, torch.fx.Graph, torch.ops.aten,
    ]  # fmt: skip
    found = {}
    for holder in holders:
        where = getattr(holder, "__qualname__", getattr(holder, "__name__", str(holder)))
        for name, value in list(vars(holder).items()):
            if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, staticmethod)):
                found[f"{where}.{name}"] = (id(value), id(getattr(value, "__code__", None)))
    return found
