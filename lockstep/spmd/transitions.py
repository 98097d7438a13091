"""The table of typed collectives: for each verb, from one type to another, forward and backward.

A row is a pair of linear actions, each the other's derivative, so that a gradient of a gradient is
the same table read the other way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.spmd import actions as act
from lockstep.spmd.types import Type

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """What a call asks for: all that a row's actions are made from.

    Args:
        src_sizes, dst_sizes: by coordinate, of the sharded dimension of the input and the output.
        root: the coordinate that `broadcast` takes, and that a "keep on one" keeps.
    """

    verb: str
    axis: str
    size: int
    src: Type
    dst: Type
    op: str = "sum"
    src_dim: int = 0
    dst_dim: int = 0
    src_sizes: Sizes = ()
    dst_sizes: Sizes = ()
    root: int = 0


class Move:
    """One row, made for one call.

    Args:
        forward: what runs on the tensor.
        backward: what runs on its gradient.
        flipped: the row of the backward, whose own derivative is the forward.
        function: an autograd Function of this row alone, where one was made.
    """

    __slots__ = ("backward", "flipped", "forward", "function")

    def __init__(self, forward: act.Action, backward: act.Action, of: Move | None = None) -> None:
        self.forward, self.backward = forward, backward
        self.function: Any = None
        self.flipped: Move = of or Move(backward, forward, self)


Row = tuple[Callable[[Ask], act.Action], Callable[[Ask], act.Action]]


def _nothing(a: Ask) -> act.Action:
    return _meant(a, act.Nothing())


def _reduce(a: Ask) -> act.Action:
    return _meant(a, act.Reduce(a.axis, a.op if a.op in ("max", "min") else "sum"))


def _gather_src(a: Ask) -> act.Action:
    return act.Gather(a.axis, a.src_dim, a.src_sizes)


def _gather_dst(a: Ask) -> act.Action:
    return _meant(a, act.Gather(a.axis, a.dst_dim, a.dst_sizes))


def _scatter_src(a: Ask) -> act.Action:
    return act.ReduceScatter(a.axis, a.src_dim, a.src_sizes)


def _scatter_dst(a: Ask) -> act.Action:
    return _meant(a, act.ReduceScatter(a.axis, a.dst_dim, a.dst_sizes))


def _slice_src(a: Ask) -> act.Action:
    return act.Slice(a.axis, a.src_dim, a.src_sizes)


def _slice_dst(a: Ask) -> act.Action:
    return act.Slice(a.axis, a.dst_dim, a.dst_sizes)


def _pad_src(a: Ask) -> act.Action:
    return act.Pad(a.axis, a.src_dim, a.src_sizes)


def _pad_dst(a: Ask) -> act.Action:
    return act.Pad(a.axis, a.dst_dim, a.dst_sizes)


def _keep(a: Ask) -> act.Action:
    return act.Keep(a.axis, a.root)


def _broadcast(a: Ask) -> act.Action:
    return act.Broadcast(a.axis, a.root)


def _reduce_to(a: Ask) -> act.Action:
    return act.ReduceTo(a.axis, a.root)


def _reshard(a: Ask) -> act.Action:
    return act.Reshard(a.axis, a.src_dim, a.dst_dim, a.src_sizes, a.dst_sizes)


def _reshard_back(a: Ask) -> act.Action:
    return act.Reshard(a.axis, a.dst_dim, a.src_dim, a.dst_sizes, a.src_sizes)


def _exchange(a: Ask) -> act.Action:
    return act.Exchange(a.axis, a.src_dim, a.dst_sizes, a.src_sizes)


def _exchange_back(a: Ask) -> act.Action:
    return act.Exchange(a.axis, a.src_dim, a.src_sizes, a.dst_sizes)


def _meant(a: Ask, action: act.Action) -> act.Action:
    return act.Mean(action, a.size) if a.op == "avg" else action


# verb -> (src, dst) -> (forward, backward); "S" stands for every S(d), V beside it for V.
TABLE: dict[str, dict[tuple[str, str], Row]] = {
    "all_reduce": {
        ("P", "R"): (_reduce, _reduce),
        ("P", "I"): (_reduce, _nothing),
        ("V", "R"): (_reduce, _nothing),  # max and min, which admit no gradient
        ("V", "I"): (_reduce, _nothing),
    },
    "all_gather": {
        ("V", "R"): (_gather_src, _scatter_src),
        ("S", "R"): (_gather_src, _scatter_src),
        ("V", "I"): (_gather_src, _slice_src),
        ("S", "I"): (_gather_src, _slice_src),
    },
    "reduce_scatter": {
        ("P", "V"): (_scatter_dst, _gather_dst),
        ("P", "S"): (_scatter_dst, _gather_dst),
    },
    "all_to_all": {
        ("S", "S"): (_reshard, _reshard_back),
        ("V", "V"): (_exchange, _exchange_back),
    },
    "broadcast": {
        ("V", "R"): (_broadcast, _reduce_to),
        ("V", "I"): (_broadcast, _keep),
    },
    "convert": {
        ("I", "R"): (_nothing, _reduce),
        ("R", "I"): (_nothing, _keep),
        ("R", "V"): (_slice_dst, _pad_dst),
        ("R", "S"): (_slice_dst, _pad_dst),
        ("I", "V"): (_slice_dst, _gather_dst),
        ("I", "S"): (_slice_dst, _gather_dst),
        ("R", "P"): (_keep, _keep),
        ("I", "P"): (_keep, _nothing),
        ("V", "P"): (_pad_src, _slice_src),
        ("S", "P"): (_pad_src, _slice_src),
    },
    "reinterpret": {
        ("R", "V"): (_nothing, _nothing),
        ("V", "P"): (_nothing, _nothing),
        ("V", "S"): (_nothing, _nothing),
        ("S", "V"): (_nothing, _nothing),
        ("R", "P"): (_nothing, _nothing),
    },
}


def move(ask: Ask) -> Move:
    """Return the actions of an admitted row."""
    forward, backward = TABLE[ask.verb][ask.src.kind, ask.dst.kind]
    return Move(forward(ask), backward(ask))
