"""What a step tells or calls beside its computation, noted as data while the step is captured.

The values that an effect wants become further outputs of the graph, copied where the effect stands;
what is done with them (text, arithmetic, a call) is written down as lists that JSON holds, and done
by `run/emit.py` after the program ran.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep.capture.binding import Call, Step
from lockstep.capture.checking import place_line
from lockstep.capture.clock import later
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.late import Late, computing
from lockstep.capture.named import name_of
from lockstep.capture.shown import Marks, refuse_unused, showing
from lockstep.errors import LockstepError
from lockstep.spmd.claims import Place
from lockstep.spmd.effects import Where, recorder
from lockstep.spmd.ops import COORDINATE

# How a value is written down: ["value", 3], ["item", 2] (the number in output 2), ["add", a, b] ...
Json = Any
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)

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

    `do`: "log" (a line of `ls.log`), "call" (a function), "method" (of a writer or a bar), "write"
    (to a standard stream) or "logging". `what`: its values, as lists. `where`: all of it holds.
    """

    do: str
    what: Json
    line: str
    where: tuple[Where, ...] = ()
    name: Any = None

    def asdict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        found = {"do": self.do, "what": _without_samples(self.what), "line": self.line}
        return {**found, "where": [where.asdict() for where in self.where], "name": self.name}


class Emits:
    """Notes the effects of one trace of a step's call.

    Args:
        coordinates: the trace's numbers that depend on the rank.
        functions: the user's, that the step reaches.
        quiet: nothing is noted, and nothing is told either: a check.
        samples: text of the trace's values is made of made-up ones: see `Marks`.
    """

    def __init__(
        self,
        step: Step,
        call: Call,
        coordinates: Coordinates,
        functions: Iterable[Any] = (),
        quiet: bool = False,
        samples: bool = False,
    ) -> None:
        self.step, self.call, self.functions = step, call, list(functions)
        self.records: list[Emit] = []
        self.slots: list[Any] = []  # tensors and numbers of the trace that effects want
        self.marks = Marks(self.written, coordinates, samples)
        self._coordinates, self.quiet, self._samples = coordinates, quiet, samples

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Note what the step does while inside; in a check nothing is noted."""
        from lockstep.capture.telling import telling

        token = recorder.set(None if self.quiet else self)
        try:
            late = computing(self, self._coordinates.knows)
            another_day = later(self.functions) if self._samples else contextlib.nullcontext()
            with telling(self), showing(self.marks, self._settled), late, another_day:
                yield
        except LockstepError:
            raise
        except Exception as error:
            if self.is_late(error.args):  # the step has looked something up by such a text
                refuse_unused([self.marks])
            raise
        finally:
            recorder.reset(token)

    def _settled(self, formula: Any) -> Any:
        known = self._coordinates.knows(formula)
        return self._coordinates.settled(formula) if known else None

    def add(self, emit: Emit) -> None:
        """Note an effect; text that goes on where the last one ended is one with it."""
        if self.quiet:
            return
        last = self.records[-1] if self.records else None
        if last is not None and emit.do == "write" == last.do and last.name == emit.name:
            if last.line == emit.line:
                joined = [["text", *last.what[0][1:], *emit.what[0][1:]]]
                self.records[-1] = replace(last, what=joined)
                return
        self.records.append(emit)

    def log(self, text: str, values: tuple[Any, ...], where: Where, place: Place) -> None:
        """Note a line of `ls.log`."""
        line = place_line(place)
        what = [self.written(value, line) for value in (text, *values)]
        self.add(Emit("log", what, line, (where,)))

    def call_on(
        self, callback: Callable[..., Any], values: tuple[Any, ...], where: Where, place: Place
    ) -> None:
        """Note a call of `ls.on_rank`."""
        line = place_line(place)
        name = name_of(self.step, self.call, callback, line, self.functions)
        self.add(Emit("call", [self.written(v, line) for v in values], line, (where,), name))

    def written(self, value: Any, line: str = "") -> Json:
        """Write a value down; one of the trace gets a slot, with what it is now."""
        if isinstance(value, (torch.Tensor, *_NUMBERS)):
            if isinstance(value, torch.Tensor) and not self.quiet:
                with torch.no_grad():
                    value = value.detach().clone()
            self.slots += [] if self.quiet else [value]
            return ["slot", len(self.slots) - 1]
        if isinstance(value, Late):
            return value.what
        if isinstance(value, str):
            return self.marks.pieces(value, line)
        if type(value) in (list, tuple):
            return [type(value).__name__, *[self.written(item, line) for item in value]]
        if type(value) is dict:
            return ["dict", *[[*map(self.written, item, (line, line))] for item in value.items()]]
        if isinstance(value, (bool, int, float, type(None))):
            return ["value", value]
        return ["said", self.marks.pieces(str(value), line), self.marks.pieces(repr(value), line)]

    def is_late(self, value: Any) -> bool:
        """Whether a value holds one of the trace, as a number, a tensor or in a text."""
        if isinstance(value, (list, tuple)):
            return any(map(self.is_late, value))
        if isinstance(value, dict):
            return any(map(self.is_late, value.values()))
        if isinstance(value, str):
            return self.marks.holds(value)
        return isinstance(value, (torch.Tensor, Late, *_NUMBERS))

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


def _without_samples(what: Json) -> Json:
    """Values without the made-up text that a comparison of two traces looks at."""
    if not isinstance(what, list):
        return what
    kept = what[:3] if what[:1] in (["shown"], ["percent"]) else what
    return [_without_samples(part) for part in kept]


def sampled(what: Json) -> Json:
    """Values with the made-up text in place of each mark: as a trace of samples notes them."""
    if not isinstance(what, list):
        return what
    if what[:1] == ["text"]:
        return ["text", "".join(p if isinstance(p, str) else p[3] for p in what[1:])]
    return [sampled(part) for part in what]


class _Writer:
    """Turns a slot's node into an output, or into what the host makes of outputs."""

    def __init__(self, gm: torch.fx.GraphModule, outputs: list[Any]) -> None:
        self._graph, self.outputs = gm.graph, outputs
        self._copies: dict[Node, Node] = {}

    def value(self, node: Any) -> Json:
        """What stands for a slot."""
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
