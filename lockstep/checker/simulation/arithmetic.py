"""Collectives as arithmetic over the list of a group's values: autograd goes through all of it.

Each function gets the members' arguments, in the order of their coordinates, and returns the
members' results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Arguments = list[tuple[Any, ...]]


def _reduced(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    stacked = torch.stack(tensors)
    if op == "sum":
        return stacked.sum(0)
    if op == "avg":
        return stacked.mean(0)
    if op == "max":
        return stacked.amax(0)
    if op == "min":
        return stacked.amin(0)
    if op == "product":
        return stacked.prod(0)
    bitwise = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
    result = tensors[0]
    for tensor in tensors[1:]:
        result = bitwise[op](result, tensor)
    return result


def _all_reduce(members: Arguments) -> list[torch.Tensor]:
    result = _reduced([args[0] for args in members], members[0][1])
    return [result.clone() for _ in members]


def _all_reduce_in_place(members: Arguments) -> list[torch.Tensor]:
    results = _all_reduce(members)
    return [args[0].copy_(result) for args, result in zip(members, results, strict=True)]


def _all_gather(members: Arguments) -> list[torch.Tensor]:
    whole = torch.cat([args[0] for args in members])
    return [whole.clone() for _ in members]


def _reduce_scatter(members: Arguments) -> list[torch.Tensor]:
    result = _reduced([args[0] for args in members], members[0][1])
    return [part.clone() for part in result.chunk(len(members))]


def _all_to_all(members: Arguments) -> list[torch.Tensor]:
    parts = [args[0].split(list(args[2])) for args in members]
    return [torch.cat([sent[to] for sent in parts]) for to in range(len(members))]


def _broadcast(members: Arguments) -> list[torch.Tensor]:
    source = members[members[0][1]][0]
    return [source.clone() for _ in members]


def _wait(args: tuple[Any, ...]) -> Any:
    return args[0]


COLLECTIVES: dict[str, Callable[[Arguments], list[torch.Tensor]]] = {
    "_c10d_functional.all_reduce": _all_reduce,
    "_c10d_functional.all_reduce_": _all_reduce_in_place,
    "_c10d_functional.all_gather_into_tensor": _all_gather,
    "_c10d_functional.reduce_scatter_tensor": _reduce_scatter,
    "_c10d_functional.all_to_all_single": _all_to_all,
    "_c10d_functional.broadcast": _broadcast,
}


def _own_slice(here: int, x: torch.Tensor, dim: int, sizes: list[int]) -> torch.Tensor:
    return x.narrow(dim, sum(sizes[:here]), sizes[here]).clone()


def _own_pad(here: int, x: torch.Tensor, dim: int, sizes: list[int]) -> torch.Tensor:
    parts = []
    for place, size in enumerate(sizes):
        shape = list(x.shape)
        shape[dim] = size
        parts.append(x if place == here else x.new_zeros(shape))
    return torch.cat(parts, dim)


def _own_trim(here: int, x: torch.Tensor, dim: int, sizes: list[int]) -> torch.Tensor:
    return x.narrow(dim, 0, sizes[here]).clone()


def _keep_on(here: int, x: torch.Tensor, root: int) -> torch.Tensor:
    return x.clone() if here == root else x * 0


# Operators of `lockstep.spmd.ops`, told the coordinate that they would read from the process.
LOCAL: dict[str, Callable[..., torch.Tensor]] = {
    "lockstep.own_slice": _own_slice,
    "lockstep.own_pad": _own_pad,
    "lockstep.own_trim": _own_trim,
    "lockstep.keep_on": _keep_on,
}
