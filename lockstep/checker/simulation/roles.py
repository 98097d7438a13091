"""Replay of ranks whose programs differ, or send messages: each goes on until it has to wait.

The stages of a pipeline have no rows in common: here a rank runs its own graph, and what meets are
messages and collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from lockstep.checker.simulation.arithmetic import COLLECTIVES
from lockstep.checker.simulation.simulate import (
    Calls,
    arguments_with,
    group_at,
    in_float64,
    line_of,
    op_name,
)
from lockstep.checker.world import World
from lockstep.spmd.point_to_point import RECV, SEND

Message = tuple[int, int, str, int, int]  # from, to, axis, how far, which of those


class Waiting(Exception):
    """No rank can go on, or a message is never taken; `lines` are where, by rank."""

    def __init__(self, lines: dict[int, str]) -> None:
        super().__init__(", ".join(f"rank {rank} at {line}" for rank, line in lines.items()))
        self.lines = lines


def message_axes(world: World) -> set[str]:
    """The axes along which some rank sends or receives."""
    nodes = [node for trace in world.ranks for node in trace.nodes]
    return {node.args[2] for node in nodes if node.target in (SEND, RECV)}  # type: ignore[misc]


@dataclass
class Roles(Calls):
    """Each rank's program, run to its end.

    Args:
        world: all its ranks.
        values: by rank: what each node gave; an input's value as the program leaves it.
        claimed: by rank: what was claimed of a value, as it was when it was computed.
    """

    world: World
    values: list[dict[Node, Any]] = field(default_factory=list)
    claimed: list[dict[Node, Any]] = field(default_factory=list)
    _under_way: dict[Message, tuple[Any, str]] = field(default_factory=dict)
    _posted: dict[Any, dict[int, Any]] = field(default_factory=dict)
    _results: dict[Any, dict[int, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.world, neutral=True)

    def run(self) -> Roles:
        """Run all programs, each as far as it can go, again and again.

        Raises:
            Waiting: they do not all end, or leave messages that nobody takes.
            RuntimeError: an operator refuses its values.
        """
        self.values = [{} for _ in self.world.ranks]
        self.claimed = [{} for _ in self.world.ranks]
        open_ = {rank: self._run(rank) for rank in range(self.size)}
        waits: dict[int, str] = {}
        with torch.no_grad(), in_float64():
            while open_:
                before = self._done()
                waits = {}
                for rank, program in list(open_.items()):
                    line = next(program, None)
                    if line is None:
                        del open_[rank]
                    else:
                        waits[rank] = line
                if waits and len(waits) == len(open_) and self._done() == before:
                    raise Waiting(waits)
        if self._under_way:
            raise Waiting({sent[0]: line for sent, (_, line) in self._under_way.items()})
        return self

    def _done(self) -> int:
        return sum(map(len, self.values))

    def _run(self, rank: int) -> Iterator[str]:
        """Run a rank's program; gives the line at which it waits, each time that it does."""
        trace, values = self.world.ranks[rank], self.values[rank]
        inputs = iter(trace.inputs)
        said = {claim.node for claim in trace.notes.claims}
        counts: Counter[tuple[int, ...]] = Counter()
        for node in trace.nodes:
            if node.op == "output":
                continue
            if node.op == "placeholder":
                values[node] = next(inputs).clone()
            elif node.op == "get_attr":
                values[node] = getattr(node.graph.owning_module, str(node.target))
            elif node.target is RECV:
                yield from self._recv(rank, node)
            elif op_name(node) in COLLECTIVES:
                yield from self._meet(rank, node, counts)
            else:
                args, kwargs = self._arguments(rank, node)
                if node.target is SEND:
                    self._send(rank, node, *args)
                values[node] = (
                    args[0].new_empty(0)
                    if node.target is SEND
                    else self.call(rank, node, args, kwargs)
                )
            if node in said:
                self.claimed[rank][node] = values[node].clone()

    def _arguments(self, rank: int, node: Node) -> tuple[Any, dict[str, Any]]:
        values = self.values[rank]
        return arguments_with(node, lambda leaf: values[leaf] if isinstance(leaf, Node) else leaf)

    def _peer(self, rank: int, axis: str, place: int) -> int:
        group = self.world.group(rank, axis)
        return group[(group.index(rank) + place) % len(group)]

    def _send(
        self, rank: int, node: Node, x: Any, _after: Any, axis: str, to: int, number: int
    ) -> None:
        key = (rank, self._peer(rank, axis, to), axis, to, number)
        self._under_way[key] = (x.clone(), line_of(node))

    def _recv(self, rank: int, node: Node) -> Iterator[str]:
        (like, _after, axis, place, number), _ = self._arguments(rank, node)
        key = (self._peer(rank, axis, place), rank, axis, -place, number)
        while key not in self._under_way:
            yield line_of(node)
        found, line = self._under_way.pop(key)
        if found.shape != like.shape:
            raise RuntimeError(f"a message of {list(found.shape)} for {list(like.shape)}, {line}")
        self.values[rank][node] = found

    def _meet(self, rank: int, node: Node, counts: Counter[tuple[int, ...]]) -> Iterator[str]:
        """A collective: it is computed once all of its group have come to it."""
        args, _ = self._arguments(rank, node)
        group = tuple(self.world.group(rank, args[group_at(node)]))
        key = group, counts[group]
        counts[group] += 1
        self._posted.setdefault(key, {})[rank] = args
        while len(self._posted[key]) < len(group):
            yield line_of(node)
        if key not in self._results:
            results = COLLECTIVES[op_name(node)]([self._posted[key][r] for r in group])
            self._results[key] = dict(zip(group, results, strict=True))
        self.values[rank][node] = self._results[key][rank]
