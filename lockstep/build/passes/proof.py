"""Prove that a graph gives the results of another to the bit, whatever became of its collectives.

Both are run on symbols, as repeats are. All ranks run one program, so that a collective's result
follows from what goes in, and not from when it is made: values, state and effects must be equal,
and the order of collectives may differ. Of several that go as one, each has its own part of it.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from lockstep.build.outline.proof import Run, Symbols, Value
from lockstep.build.passes.collectives import (
    GATHERS,
    KINDS,
    REDUCES,
    SCATTERS,
    axis_of,
    is_start,
    is_wait,
    kind,
)
from lockstep.build.passes.order import is_ordered
from lockstep.build.passes.update import loop_of


def equal(gm: Any, made: Any, pairs: frozenset[str] | None) -> bool:
    """Whether a graph computes what another does.

    Args:
        pairs: the axes along which the order of addition is no matter; None: along any.
    """
    symbols = Symbols()
    count = len(gm.graph.find_nodes(op="placeholder"))
    ends = []
    for graph in (gm.graph, made.graph):
        run = _Run(symbols, pairs)
        numbers = [symbols.of("input", at) for at in range(count)]
        values = run.call(graph, [Value(number, number) for number in numbers])
        ends.append(run.end(values))
    return ends[0] is not None and ends[0] == ends[1]


class _Flat(Value):
    """A value in rows; it is `whole` again in the shape `shape`."""

    def __init__(self, number: int, whole: Value, shape: list[int]) -> None:
        super().__init__(number, whole.memory)
        self.whole, self.shape = whole, shape


class _Joined(Value):
    """Values side by side in rows: of each what it is, and its shape; `cut`: as a list of them."""

    def __init__(self, number: int, parts: list[Any], rows: int, cut: bool = False) -> None:
        super().__init__(number, number)
        self.parts, self.rows, self.cut = parts, rows, cut


class _Each(Value):
    """The results of one call over a list of tensors."""

    def __init__(self, number: int, parts: list[Value]) -> None:
        super().__init__(number, number)
        self.parts = parts


class _Run(Run):
    """One run, in which collectives are no effects, and several may be one."""

    def __init__(self, symbols: Symbols, pairs: frozenset[str] | None) -> None:
        super().__init__(symbols)
        self._pairs = pairs
        self._sources: dict[int, tuple[int, Any]] = {}

    def called(self, node: Any, values: dict[Any, Any]) -> Value:
        given: Any = node.args[0] if node.args else None
        first = values.get(given) if hasattr(given, "op") else None
        loop = loop_of(node)
        if loop is not None:
            return self._each(self.call(loop[0], [values[one] for one in loop[1]]))
        if isinstance(first, _Each) and node.target is operator.getitem:
            return first.parts[node.args[1]]
        made = None
        if node.target is torch.ops.aten.cat.default and node.args[1:] == (1,):
            made = self._laid(list(given), values)
        elif first is not None and is_start(node):
            made = self._started(node, first)
        elif first is not None and is_wait(node):
            made = self._ended(first)
        elif isinstance(first, _Joined):
            made = self._taken(node, first)
        elif first is not None and node.target is torch.ops.aten.view.default:
            made = self._viewed(node, first, values)
        return made if made is not None else super().called(node, values)

    def ordered(self, node: Any) -> bool:
        return is_ordered(node)

    def _each(self, parts: list[Value]) -> Value:
        """What a foreach call gives: what its loop does, tensor by tensor."""
        return _Each(self.symbols.of("each", *(one.number for one in parts)), parts)

    # -- collectives

    def _started(self, node: Any, first: Value) -> Value:
        rest = repr(node.args[1:])

        def number(content: Any) -> int:
            return self.symbols.of(kind(node), content, rest)

        if isinstance(first, _Joined) and self._goes_as_one(node, first):
            ranks = node.args[-2] if kind(node) != REDUCES else 1
            rows = ranks if kind(node) == GATHERS else 1
            parts = [(number(one), _result(node, shape, ranks)) for one, shape in first.parts]
            made: Value = self._as_one(parts, rows)
        else:
            made = self.fresh(number(self._content(first)))
        self._sources[made.number] = first.memory, self.state.get(first.memory)
        return made

    def _goes_as_one(self, node: Any, first: _Joined) -> bool:
        free = kind(node) == GATHERS or self._pairs is None or axis_of(node) in self._pairs
        rows = node.args[-2] if kind(node) == SCATTERS else 1
        return kind(node) in KINDS and free and first.rows == rows

    def _ended(self, first: Value) -> Value:
        """What is there once a collective has ended; its input may not have changed meanwhile."""
        memory, was = self._sources.get(first.number, (first.memory, None))
        now = self.state.get(memory)
        changed = (now,) if now != was else ()
        if isinstance(first, _Joined):
            parts = [(self.symbols.of("wait", one, *changed), shape) for one, shape in first.parts]
            return self._as_one(parts, first.rows)
        return self.fresh(self.symbols.of("wait", first.number, *changed))

    # -- side by side

    def _laid(self, nodes: list[Any], values: dict[Any, Any]) -> Value | None:
        rows = nodes[0].meta["val"].shape[0]
        flat = [values[one] for one in nodes]
        if not all(isinstance(one, _Flat) for one in flat) or type(rows) is not int:
            return None
        return self._as_one([(self._content(one.whole), one.shape) for one in flat], rows)

    def _viewed(self, node: Any, first: Value, values: dict[Any, Any]) -> Value | None:
        shape = list(node.args[0].meta["val"].shape)
        made = list(node.meta["val"].shape)
        if not all(type(number) is int for number in shape + made):
            return None
        if isinstance(first, _Flat) and made == first.shape:
            return first.whole
        if len(made) != 2:
            return None
        return _Flat(super().called(node, values).number, first, shape)

    def _taken(self, node: Any, first: _Joined) -> Value | None:
        aten = torch.ops.aten
        widths = [math.prod(shape) // first.rows for _, shape in first.parts]
        if node.target is aten.view.default:
            made = list(node.meta["val"].shape)
            return first if made == [first.rows, sum(widths)] else None
        if node.target is aten.split_with_sizes_copy.default and not first.cut:
            if list(node.args[1]) == widths and node.args[2:] == (1,):
                return _Joined(first.number, first.parts, first.rows, cut=True)
        if node.target is operator.getitem and first.cut:
            number, shape = first.parts[node.args[1]]
            return _Flat(self.symbols.of("rows", number, first.rows), self.fresh(number), shape)
        return None

    def _as_one(self, parts: list[Any], rows: int) -> _Joined:
        made = _Joined(self.symbols.of("as one", repr(parts), rows), parts, rows)
        self.fresh(made.number)
        return made

    def _content(self, value: Value) -> Any:
        return value.number, self.state.get(value.memory)


def _result(node: Any, shape: list[int], ranks: int) -> list[int]:
    """The shape of what a collective makes of a value."""
    if kind(node) == GATHERS:
        return [shape[0] * ranks, *shape[1:]]
    return [shape[0] // ranks, *shape[1:]] if kind(node) == SCATTERS else shape
