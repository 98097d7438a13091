"""Rows of the table of typed collectives beside autograd Functions written by hand.

Each Function is what one writes without a library: `torch.distributed` on the group, in a tensor
that it made. Both ranks of axis "tp" run the same pairs in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import lockstep as ls
from lockstep import I, P, R, S, V
from lockstep.spmd.mesh import axis

Run = Callable[[torch.Tensor], torch.Tensor]
SIZE = 256  # 256 KiB


@dataclass(frozen=True)
class Pair:
    """One row: ours, and a Function by hand made of what runs forward and what runs backward."""

    name: str
    ours: Run
    theirs: Run
    communicates: bool
    shape: tuple[int, int] = (SIZE, SIZE)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an input that needs a gradient, and a gradient of the output."""
        torch.manual_seed(0)
        x = torch.randn(self.shape, requires_grad=True)
        return x, torch.randn(self.theirs(x).shape)


def by_hand(forward: Run, backward: Run) -> Run:
    """Return the `apply` of an autograd Function of these two."""

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return backward(grad)

    return lambda x: ByHand.apply(x)  # as deep as ours


def group() -> dist.ProcessGroup:
    """Return the group that all of them use."""
    return axis("tp").group


def same(x: torch.Tensor) -> torch.Tensor:
    return x.view_as(x)


def reduced(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    dist.all_reduce(out, group=group())
    return out


def averaged(x: torch.Tensor) -> torch.Tensor:
    return reduced(x) / dist.get_world_size(group())


def divided(x: torch.Tensor) -> torch.Tensor:
    return x / dist.get_world_size(group())


def gathered(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0] * dist.get_world_size(group()), *x.shape[1:])
    dist.all_gather_single(out, x.contiguous(), group=group())
    return out


def gathered_columns(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(gathered(x).chunk(dist.get_world_size(group())), 1)


def scattered(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[0] // dist.get_world_size(group()), *x.shape[1:])
    dist.reduce_scatter_single(out, x.contiguous(), group=group())
    return out


def scattered_columns(x: torch.Tensor) -> torch.Tensor:
    return scattered(torch.cat(x.chunk(dist.get_world_size(group()), 1)))


def exchanged(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous(), group=group())
    return out


def rows_to_columns(x: torch.Tensor) -> torch.Tensor:
    n = dist.get_world_size(group())
    return exchanged(torch.cat(x.chunk(n, 1)))


def columns_to_rows(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(exchanged(x).chunk(dist.get_world_size(group())), 1)


def broadcast(x: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    dist.broadcast(out, 0, group=group())
    return out


def kept(x: torch.Tensor) -> torch.Tensor:
    return x.clone() if dist.get_rank(group()) == 0 else torch.zeros_like(x)


def kept_sum(x: torch.Tensor) -> torch.Tensor:
    return kept(reduced(x))


def sliced(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size(group()))[dist.get_rank(group())].clone()


def padded(x: torch.Tensor) -> torch.Tensor:
    out = x.new_zeros(x.shape[0] * dist.get_world_size(group()), *x.shape[1:])
    out.chunk(dist.get_world_size(group()))[dist.get_rank(group())].copy_(x)
    return out


def _pair(verb: str, src: Any, dst: Any, forward: Run, backward: Run, **more: Any) -> Pair:
    call = getattr(ls, verb)
    local = (same, divided, kept, sliced, padded)
    return Pair(
        " ".join([verb, f"{src}->{dst}", *map(str, more.values())]),
        lambda x: call(x, "tp", src=src, dst=dst, **more),
        by_hand(forward, backward),
        communicates=not {forward, backward} <= set(local),
    )


PAIRS = [
    _pair("all_reduce", P, R, reduced, reduced),
    _pair("all_reduce", P, I, reduced, same),
    _pair("all_reduce", P, R, averaged, averaged, op="avg"),
    _pair("all_reduce", P, I, averaged, divided, op="avg"),
    _pair("all_gather", S(0), R, gathered, scattered),
    _pair("all_gather", S(1), R, gathered_columns, scattered_columns),
    _pair("all_gather", V, I, gathered, sliced),
    _pair("reduce_scatter", P, S(0), scattered, gathered),
    _pair("reduce_scatter", P, S(1), scattered_columns, gathered_columns),
    _pair("all_to_all", S(0), S(1), rows_to_columns, columns_to_rows),
    _pair("all_to_all", V, V, exchanged, exchanged),
    _pair("broadcast", V, R, broadcast, kept_sum),
    _pair("broadcast", V, I, broadcast, kept),
    _pair("convert", I, R, same, reduced),
    _pair("convert", I, S(0), sliced, gathered),
    _pair("convert", R, I, same, kept, expert=True),
    _pair("convert", R, S(0), sliced, padded),
    _pair("convert", R, P, kept, kept),
    _pair("convert", I, P, kept, same),
    _pair("convert", S(0), P, padded, sliced),
    _pair("reinterpret", R, V, same, same),
    _pair("reinterpret", V, P, same, same),
    _pair("reinterpret", S(0), V, same, same),
]
