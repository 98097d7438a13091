"""Keeps every bit: collectives of one kind, axis and dtype go together, as one over all their data.

Values are laid side by side, one collective is made of them, and each gets its own part of the
result. A gather copies, so that this holds for any number of ranks. Of a sum only where two ranks
add: a + b is b + a. With more, the order in which a library adds may depend on where a number lies
in its buffer, so that `bucket_wide` has to be asked for.
"""

from __future__ import annotations

import operator
from typing import Any

from lockstep.build.outline.nodes import calls
from lockstep.build.passes.collectives import (
    GATHERS,
    KINDS,
    SCATTERS,
    axis_of,
    kind,
    size_of,
    wait_of,
)
from lockstep.build.passes.order import late
from lockstep.capture.origin import META
from lockstep.checker.again import WAS

SHARE = 4  # collectives that are made of all, so that the first can start before the last
PUT_OFF = 1 << 30


def bucketed(graph: Any, mode: Any, pairs: frozenset[str] | None, limit: int) -> int:
    """Put collectives together; changes the graph.

    Args:
        mode: the fake mode of its values.
        pairs: the axes of two ranks: over others no reduction is touched; None: over any.
        limit: bytes that one collective may have.

    Returns:
        How many collectives are now part of another.
    """
    late(graph, PUT_OFF)
    found = _buckets(graph, pairs, limit)
    for bucket in found:
        _Bucket(graph, mode, bucket).make()
    return sum(map(len, found))


def _buckets(graph: Any, pairs: frozenset[str] | None, limit: int) -> list[list[Any]]:
    nodes = calls(graph)
    order = {node: at for at, node in enumerate(nodes)}
    groups: dict[Any, list[Any]] = {}
    for node in nodes:
        if kind(node) in KINDS and _may(node, pairs):
            value = node.args[0].meta["val"]
            key = (kind(node), node.args[1:], value.dtype, value.device)
            groups.setdefault(key, []).append(node)
    found: list[list[Any]] = []
    for group in groups.values():
        most = min(limit, -(-sum(_bytes(one) for one in group) // SHARE))
        taken: list[Any] = []
        for node in group:
            ends = min((order[wait_of(one)] for one in taken), default=order[node])
            if taken and (order[node] > ends or sum(map(_bytes, (*taken, node))) > most):
                found.append(taken)
                taken = []
            taken.append(node)
        found.append(taken)
    return [bucket for bucket in found if len(bucket) > 1]


def _bytes(start: Any) -> int:
    return max(size_of(start.args[0]) or 0, size_of(start) or 0)


def _may(start: Any, pairs: frozenset[str] | None) -> bool:
    value = start.args[0].meta["val"]
    known = size_of(start) and size_of(start.args[0]) and not start.kwargs
    if not known or not value.is_contiguous() or wait_of(start) is None:
        return False
    return kind(start) == GATHERS or pairs is None or axis_of(start) in pairs


class _Bucket:
    """One bucket: rows of all values side by side, one row a rank where each gets or gives one."""

    def __init__(self, graph: Any, mode: Any, starts: list[Any]) -> None:
        self._graph, self._mode, self._starts = graph, mode, starts

    def make(self) -> None:
        import torch

        aten = torch.ops.aten
        last, waits = self._starts[-1], [wait_of(start) for start in self._starts]
        order = {node: at for at, node in enumerate(self._graph.nodes)}
        ranks = last.args[-2] if kind(last) != "all_reduce" else 1
        rows_in = ranks if kind(last) == SCATTERS else 1
        rows_out = ranks if kind(last) == GATHERS else 1
        with self._graph.inserting_before(last):
            flat = [
                self._call(aten.view.default, one.args[0], [rows_in, -1], like=one)
                for one in self._starts
            ]
            joined = self._call(aten.cat.default, flat, 1, like=last)
            started = self._call(last.target, joined, *last.args[1:], like=last)
        widths = [one.meta["val"].numel() // rows_out for one in self._starts]
        first = min(waits, key=order.__getitem__)
        with self._graph.inserting_before(first):
            ended = self._call(first.target, started, like=first)
            rows = self._call(aten.view.default, ended, [rows_out, -1], like=first)
            split = aten.split_with_sizes_copy.default
            parts = self._call(split, rows, widths, 1, like=first)
            for at, wait in enumerate(waits):
                part = self._part(parts, at, like=wait)
                shape = list(wait.meta["val"].shape)
                own = self._call(aten.view.default, part, shape, like=wait)
                own.meta[WAS] = wait.name
                wait.replace_all_uses_with(own)
        for node in (*waits, *self._starts):
            self._graph.erase_node(node)

    def _call(self, target: Any, *args: Any, like: Any) -> Any:
        import torch

        node = self._graph.call_function(target, args)
        values = torch.fx.node.map_arg(args, lambda one: one.meta["val"])
        with self._mode:
            node.meta["val"] = target(*values)
        self._charge(node, like)
        return node

    def _part(self, parts: Any, at: int, like: Any) -> Any:
        node = self._graph.call_function(operator.getitem, (parts, at))
        node.meta["val"] = parts.meta["val"][at]
        self._charge(node, like)
        return node

    @staticmethod
    def _charge(node: Any, like: Any) -> None:
        if META in like.meta:
            node.meta[META] = like.meta[META]
