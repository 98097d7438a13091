"""What a step tells or calls beside its computation, noted as data while the step is captured.

The values that an effect wants become further outputs of the graph, copied where the effect stands;
what is done with them (text, arithmetic, a call) is written down as lists that JSON holds, and done
by `run/emit.py` after the program ran.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep.capture.binding import Call, Step
from lockstep.capture.checking import place_line
from lockstep.capture.named import name_of
from lockstep.spmd.claims import Place, phase
from lockstep.spmd.effects import Where, recorder
from lockstep.spmd.ops import COORDINATE

# How a value is written down: ["value", 3], ["item", 2] (the number in output 2), ["add", a, b] ...
Json = Any

# A function of the graph on Python numbers -> its word; `run/emit.py` computes by the same words.
HOST: dict[Any, str] = {
    **{getattr(operator, name): name for name in (
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs",
        "eq", "ne", "lt", "le", "gt", "ge",
    )},
    torch.sym_float: "float",
    torch.sym_int: "int",
    torch.sym_max: "max",
    torch.sym_min: "min",
    torch.sym_not: "not",
    math.floor: "floor",
    math.ceil: "ceil",
    math.trunc: "trunc",
    round: "round",
}  # fmt: skip


@dataclass(frozen=True)
class Emit:
    """One effect: what is done, with which values, on which ranks.

    `do`: "log" (a line of `ls.log`) or "call" (a function by name). `what`: its values, as lists.
    """

    do: str
    what: Json
    where: Where
    line: str
    name: Any = None

    def asdict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "where": self.where.asdict()}


class Emits:
    """Notes the effects of one trace of a step's call."""

    def __init__(self, step: Step, call: Call) -> None:
        self.records: list[Emit] = []
        self.slots: list[Any] = []  # tensors and numbers of the trace that effects want
        self._step, self._call = step, call

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note what the step does while inside; in a check nothing is noted."""
        token = recorder.set(self if phase() != "check" else None)
        try:
            yield
        finally:
            recorder.reset(token)

    def log(self, text: str, values: tuple[Any, ...], where: Where, place: Place) -> None:
        """Note a line of `ls.log`."""
        what = [["value", text], *map(self.written, values)]
        self.records.append(Emit("log", what, where, place_line(place)))

    def call(
        self, callback: Callable[..., Any], values: tuple[Any, ...], where: Where, place: Place
    ) -> None:
        """Note a call of `ls.on_rank`."""
        line = place_line(place)
        name = name_of(self._step, self._call, callback, line)
        self.records.append(Emit("call", [*map(self.written, values)], where, line, name))

    def written(self, value: Any) -> Json:
        """Write a value down; one of the trace gets a slot, with what it is now."""
        if isinstance(value, torch.Tensor):
            with torch.no_grad():
                self.slots.append(value.detach().clone())
            return ["slot", len(self.slots) - 1]
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            self.slots.append(value)
            return ["slot", len(self.slots) - 1]
        return ["value", value]

    def finish(self, gm: torch.fx.GraphModule) -> list[Emit]:
        """Take the slots, which are the graph's last outputs, as what a program gives.

        Returns:
            The effects, whose values are outputs of the graph and what is made of them.
        """
        if not self.slots:
            return self.records
        output = gm.graph.output_node()
        nodes = list(output.args[0])  # type: ignore[arg-type]
        first = len(nodes) - len(self.slots)
        writer = _Writer(gm, nodes[:first])
        found = [writer.value(node) for node in nodes[first:]]
        output.args = (tuple(writer.outputs),)
        return [replace(r, what=_filled(r.what, found)) for r in self.records]


class _Writer:
    """Turns a slot's node into an output, or into what the host makes of outputs."""

    def __init__(self, gm: torch.fx.GraphModule, outputs: list[Any]) -> None:
        self._graph, self.outputs = gm.graph, outputs
        self._copies: dict[Node, Node] = {}

    def value(self, node: Any) -> Json:
        if not isinstance(node, Node):  # the same number at every call
            return ["value", node]
        if isinstance(node.meta.get("val"), torch.Tensor):
            return ["tensor", self._output(node)]
        if node.target is _compat.item_op():
            return ["item", self._output(self._copy(node))]
        if node.target is COORDINATE:
            return ["place", node.args[1]]
        if node.target in HOST and not node.kwargs:
            return [HOST[node.target], *map(self.value, node.args)]
        return ["tensor", self._output(node)]  # a number that the graph computes

    def _copy(self, item: Node) -> Node:
        """The tensor whose number is read, as it is there: it may be written to later."""
        if item not in self._copies:
            with self._graph.inserting_before(item):
                made = self._graph.call_function(torch.ops.aten.clone.default, (item.args[0],))
            made.meta.update(item.args[0].meta)  # type: ignore[union-attr]
            self._copies[item] = made
        return self._copies[item]

    def _output(self, node: Node) -> int:
        if node not in self.outputs:
            self.outputs.append(node)
        return self.outputs.index(node)


def _filled(what: Json, found: list[Json]) -> Json:
    """Values with what stands for their slots in place of them."""
    if isinstance(what, list) and what[:1] == ["slot"]:
        return found[what[1]]
    return [_filled(part, found) for part in what] if isinstance(what, list) else what
