"""Replay all ranks' graphs in lock step, in one process, in float64.

A collective is plain tensor arithmetic over the list of the ranks' values, so that autograd goes
through it. Every rank's graph has the same nodes in the same order; what a node reads may differ,
as `x.chunk(n)[rank]` does.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from lockstep import _compat
from lockstep.capture.origin import META
from lockstep.capture.schemas import without_out, written_arguments
from lockstep.checker.inputs import promoted
from lockstep.checker.simulation.arithmetic import COLLECTIVES, LOCAL
from lockstep.checker.simulation.memory import overwritten
from lockstep.checker.simulation.neutral import neutral_draw
from lockstep.checker.world import World

Values = dict[int, list[Any]]  # index of a row -> its value on each rank
Patch = Mapping[int, Callable[[list[Any]], list[Any]]]

ALL = ("forward", "backward", "after")


class Divergent(Exception):
    """The ranks' graphs differ in structure; `lines` are where, on two ranks."""

    def __init__(
        self, lines: tuple[str, str], ranks: tuple[int, int], ops: tuple[str, str]
    ) -> None:
        told = [f"rank {r} at {line or 'an input'}" for r, line in zip(ranks, lines, strict=True)]
        super().__init__(", ".join(told))
        self.lines, self.ranks, self.ops = lines, ranks, ops


class Failed(RuntimeError):
    """An operator ends with an error on what the ranks give it, as it would in the job.

    Args:
        op: its name.
        line: the user's line of it.
        shapes: of its tensors, by rank.
        error: what it raised.
    """

    def __init__(self, op: str, line: str, shapes: list[list[list[int]]], error: Exception) -> None:
        super().__init__(f"{op} at {line}: {error}")
        self.op, self.line, self.shapes, self.error = op, line, shapes, error


class Calls:
    """What the operators of a world's ranks compute, each for itself.

    Args:
        neutral: give every random draw its mean, for comparisons between meshes.
    """

    def __init__(self, world: World, neutral: bool = False) -> None:
        self.world, self.neutral = world, neutral
        self.states = [dict(trace.notes.draws) for trace in world.ranks]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.world.ranks)

    def call(
        self, rank: int, node: Node, args: Any, kwargs: dict[str, Any], detach: bool = True
    ) -> Any:
        """Compute one node on one rank; it is no collective."""
        name = op_name(node)
        if name in LOCAL:
            return LOCAL[name](self._coordinate(rank, args[-1]), *args[:-1])
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return self._draw(rank, node, args, kwargs)
        if name == "aten.detach" and not detach:
            return args[0].view_as(args[0])
        if without_out(node.target) is not None:
            return _writing(node.target, args, kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _coordinate(self, rank: int, axis: str) -> int:
        return self.world.group(rank, axis).index(rank)

    def _draw(self, rank: int, node: Node, args: Any, kwargs: Any) -> Any:
        if self.neutral:
            return neutral_draw(node.target, args, kwargs)
        with torch.random.fork_rng([]):
            state = self.states[rank].get(node)
            if state is not None:
                torch.set_rng_state(state)
            return node.target(*args, **kwargs)  # type: ignore[operator]


class Simulation(Calls):
    """The rows of a world: one node of each rank's graph, side by side.

    Args:
        neutral: give every random draw its mean, for comparisons between meshes.

    Raises:
        Divergent: the graphs differ in structure.

    Whatever computes rows raises Failed where an operator refuses the values that it is given.
    """

    def __init__(self, world: World, neutral: bool = False) -> None:
        super().__init__(world, neutral)
        graphs = [trace.nodes for trace in world.ranks]
        _same_structure(graphs)
        self.rows: list[tuple[Node, ...]] = list(zip(*graphs, strict=True))
        self.at = [{node: i for i, node in enumerate(nodes)} for nodes in graphs]
        self.index = {nodes[0].name: i for i, nodes in enumerate(self.rows)}
        self.inputs = [i for i, nodes in enumerate(self.rows) if nodes[0].op == "placeholder"]
        self.phase = [world.ranks[0].phases[nodes[0].name] for nodes in self.rows]
        forward = [phase == "forward" for phase in self.phase]
        self.overwritten = overwritten([nodes[0] for nodes in self.rows], forward)

    @functools.cached_property
    def settled(self) -> int:
        """The first row from which on no value of an earlier one changes any more."""
        last = len(self.rows)
        late = next((row for row, phase in enumerate(self.phase) if phase in ALL[1:]), last)
        nodes = [nodes[0] for nodes in self.rows[late:] if nodes[0].op == "call_function"]
        return last if any(written_arguments(node.target) for node in nodes) else late

    def line(self, row: int) -> str:
        """The user's line of a row, on rank 0."""
        return line_of(self.rows[row][0])

    def sources(self, row: int) -> list[int]:
        """The rows that a row comes from, on rank 0: what it reads, and what is written to it."""
        node = self.rows[row][0]
        return [self.at[0][source] for source in (*node.all_input_nodes, *_writes(node))]

    def written(self, row: int) -> bool:
        """Whether something is copied into a row's value after it was made."""
        return bool(_writes(self.rows[row][0]))

    def feed(self) -> Values:
        """The inputs' values, copied."""
        found: Values = {}
        for position, row in enumerate(self.inputs):
            found[row] = [trace.inputs[position].clone() for trace in self.world.ranks]
        return found

    def run(
        self,
        values: Values,
        phases: tuple[str, ...] = ALL,
        seen: Values | None = None,
        patch: Patch | None = None,
    ) -> Values:
        """Compute the rows of the given phases, in order, without gradients.

        Args:
            values: holds the inputs, and what the phases left out have computed; is added to.
            seen: gets copies: of the forward's values as the backward begins, since what is copied
                into them belongs to them, and of the others as they were computed.
            patch: row -> what to do to its values once computed.

        Returns:
            `values`.
        """
        fresh = [row for row, nodes in enumerate(self.rows) if nodes[0].op == "placeholder"]
        with torch.no_grad(), in_float64():
            for row in self._rows_of(phases, values):
                if seen is not None and self.phase[row] != "forward":
                    _copy_rows(values, fresh, seen)
                values[row] = self._compute(row, values)
                if patch is not None and row in patch:
                    values[row] = patch[row](values[row])
                fresh.append(row)
                if seen is not None and row in self.overwritten:
                    _copy_rows(values, [fresh.pop()], seen)
                if seen is not None and self.phase[row] != "forward":
                    _copy_rows(values, fresh, seen)
            if seen is not None:
                _copy_rows(values, fresh, seen)
        return values

    def run_forward(
        self,
        values: Values,
        leaves: set[int] | frozenset[int] = frozenset(),
        edges: Values | None = None,
    ) -> Values:
        """Compute the forward rows with autograd on; user's cuts alone stop a gradient.

        Args:
            leaves: rows whose values begin anew: no gradient goes through them to what they are of.
            edges: gets, of each overwritten row, the place in autograd's graph of its values.

        What autograd Functions and collectives do is differentiated as it is written.
        """
        cuts = self.world.ranks[0].notes.cuts
        with in_float64():
            for row in self._rows_of(("forward",), values):
                cut = self.rows[row][0] in cuts
                with torch.set_grad_enabled(not cut):
                    values[row] = self._compute(row, values, detach=cut)
                if row in leaves:
                    values[row] = [value.detach().requires_grad_() for value in values[row]]
                if edges is not None and row in self.overwritten:
                    edges[row] = [_edge(value) for value in values[row]]
        return values

    def _rows_of(self, phases: tuple[str, ...], values: Values) -> Iterator[int]:
        for row, nodes in enumerate(self.rows):
            if nodes[0].op == "output" or row in values:
                continue
            if self.phase[row] in phases:
                yield row

    def _compute(self, row: int, values: Values, detach: bool = True) -> list[Any]:
        nodes = self.rows[row]
        if nodes[0].op == "get_attr":
            return [
                getattr(nodes[r].graph.owning_module, nodes[r].target) for r in range(self.size)
            ]
        calls = [self._arguments(r, node, values) for r, node in enumerate(nodes)]
        try:
            return self._called(nodes, calls, detach)
        except NotImplementedError:  # of this replay, not of the job
            raise
        except (RuntimeError, IndexError) as error:
            shapes = [_shapes(call) for call in calls]
            raise Failed(op_name(nodes[0]), self.line(row), shapes, error) from error

    def _called(self, nodes: tuple[Node, ...], calls: list[Any], detach: bool) -> list[Any]:
        name = op_name(nodes[0])
        if name in COLLECTIVES:
            return self._collective(name, nodes[0], calls)
        return [
            self.call(rank, nodes[rank], args, kwargs, detach)
            for rank, (args, kwargs) in enumerate(calls)
        ]

    def _arguments(self, rank: int, node: Node, values: Values) -> tuple[Any, dict[str, Any]]:
        at = self.at[rank]

        def look(leaf: Any) -> Any:
            if isinstance(leaf, Node):
                return values[at[leaf]][rank]
            return leaf

        return arguments_with(node, look)

    def _collective(self, name: str, node: Node, calls: list[Any]) -> list[Any]:
        place = group_at(node)
        found: list[Any] = [None] * self.size
        for rank in range(self.size):
            if found[rank] is not None:
                continue
            group = self.world.group(rank, calls[rank][0][place])
            results = COLLECTIVES[name]([calls[r][0] for r in group])
            for member, result in zip(group, results, strict=True):
                found[member] = result
        return found


def arguments_with(node: Node, look: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
    """A node's arguments for a replay in float64, each leaf as `look` gives it."""

    def promoting(leaf: Any) -> Any:
        return promoted(leaf) if isinstance(leaf, torch.dtype) else look(leaf)

    return map_aggregate(node.args, promoting), map_aggregate(node.kwargs, promoting)  # type: ignore


def group_at(node: Node) -> int:
    """The place of the group among a collective's arguments."""
    return [argument.name for argument in _compat.schema(node.target).arguments].index("group_name")


def _shapes(call: tuple[Any, dict[str, Any]]) -> list[list[int]]:
    leaves = _compat.pytree.tree_leaves(call)
    return [list(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _edge(value: Any) -> Any:
    """A value's place in autograd's graph: it has another once it is written to."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    return torch.autograd.graph.get_gradient_edge(value)


def _writing(target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an `out=` overload as its plain one and a copy: autograd goes through those."""
    outs = [kwargs[a.name] for a in _compat.schema(target).arguments if a.is_out]
    rest = {name: value for name, value in kwargs.items() if not any(value is o for o in outs)}
    made = without_out(target)(*args, **rest)
    for out, value in zip(outs, made if isinstance(made, tuple) else [made], strict=True):
        out.copy_(value)
    return outs[0] if len(outs) == 1 else tuple(outs)


def op_name(node: Node) -> str:
    """An operator's name without its overload: "aten.mul"; "" for what is no operator."""
    target = node.target
    if node.op != "call_function" or not hasattr(target, "namespace"):
        return getattr(target, "__name__", "") if node.op == "call_function" else ""
    return _compat.schema(target).name.replace("::", ".")


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """New tensors without a dtype are float64, as everything else in a check."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _writes(node: Node) -> list[Node]:
    """What is copied into a value, or into a plain alias of it, after it was made."""
    found = []
    for user in node.users:
        if op_name(user) == "aten.copy_" and user.args[0] is node:
            found.append(user.args[1])
        elif op_name(user) in ("aten.alias", "aten.detach"):
            writes = [w for w in user.users if op_name(w) == "aten.copy_" and w.args[0] is user]
            found += [write.args[1] for write in writes]
    return found  # type: ignore[return-value]


def _copy_rows(values: Values, rows: list[int], into: Values) -> None:
    """Copy the values of the rows named, and name no rows any more."""
    for row in rows:
        into[row] = [_copied(value) for value in values[row]]
    rows.clear()


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value


def _same_structure(graphs: list[list[Node]]) -> None:
    first = graphs[0]
    for rank, nodes in enumerate(graphs[1:], start=1):
        for a, b in zip(first, nodes, strict=False):
            if a.op != b.op or (a.op == "call_function" and a.target is not b.target):
                raise Divergent((line_of(a), line_of(b)), (0, rank), (str(a.target), str(b.target)))
        if len(nodes) != len(first):
            raise Divergent((line_of(first[-2]), line_of(nodes[-2])), (0, rank), ("", ""))


def line_of(node: Node) -> str:
    origin = node.meta.get(META)
    return origin.line if origin is not None else ""
