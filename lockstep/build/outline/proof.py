"""Prove that driver and bodies compute what the graph does, without computing anything.

Both are run on symbols. Each value becomes a number that stands for the operator that gave it, its
arguments, and the state of the memory that it read: equal numbers are equal bits. Outputs, the
final state of every input, and the order of draws and collectives must come out the same. It holds
for every input and every size, and costs neither memory nor a second rank.
"""

from __future__ import annotations

import operator
from typing import Any

from lockstep.build.outline.driver import BODY
from lockstep.build.outline.nodes import is_same, is_scalar, is_size, is_view, stays, written


class Symbols:
    """Numbers for terms: the same term, the same number."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, *term: Any) -> int:
        return self._numbers.setdefault(term, len(self._numbers))


class Value:
    """A value: its number, and the number of the memory that it is in."""

    def __init__(self, number: int, memory: int) -> None:
        self.number, self.memory = number, memory


class Run:
    """One run on symbols: what each memory holds, and the effects so far in order."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self.state: dict[int, int] = {}
        self.born: dict[int, int] = {}
        self.effects: list[int] = []

    def call(self, graph: Any, inputs: list[Value]) -> list[Any]:
        """Run a graph; return its outputs, plain values as they are."""
        import torch

        given = iter(list(inputs))
        inputs.clear()
        values: dict[Any, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "call_function":
                values[node] = self.called(node, values)
        outputs = torch.fx.node.map_arg(graph.output_node().args[0], values.__getitem__)
        return list(outputs)

    def called(self, node: Any, values: dict[Any, Any]) -> Value:
        view = is_view(node)
        if is_same(node) and not stays(node):
            return values[node.args[0]]
        if is_scalar(node) and is_size(node.meta["val"]):  # by formula: exact, and of inputs alone
            number = self.symbols.of("size", str(node.meta["val"]))
            return Value(number, number)
        number = self.symbols.of(str(node.target), *self.read(node, values, not view))
        first = values.get(node.args[0]) if node.args else None
        if view or node.target is operator.getitem:
            memory = first.memory if view and first else number
            made = Value(number, memory)
        else:
            made = self.fresh(number)
        if self.ordered(node):
            self.effects.append(number)
        for target in written(node):
            memory = values[target].memory
            self.state[memory] = self.symbols.of("written", number, self.state.get(memory))
        return first if is_same(node) and first else made

    def read(self, node: Any, values: dict[Any, Any], contents: bool) -> tuple[Any, ...]:
        """What an operator reads: which values, and, unless it makes a view, what is in them.

        A draw and a collective also read when they run.
        """
        import torch

        def term(one: Any) -> Any:
            value = values[one]
            return _Term((value.number, self.state.get(value.memory) if contents else None))

        arguments = torch.fx.node.map_arg((node.args, node.kwargs), term)
        return repr(arguments), len(self.effects) if self.ordered(node) else None

    def fresh(self, number: int) -> Value:
        """A value in a memory of its own."""
        self.born[number] = self.born.get(number, 0) + 1
        return Value(number, number)

    def ordered(self, node: Any) -> bool:
        """Whether it is told when a call runs, among others of which this holds."""
        return stays(node)

    def end(self, outputs: list[Any]) -> Any:
        """Everything that can be seen of a run; None where two memories have become one number."""
        if any(self.born.get(memory, 1) > 1 for memory in self.state):
            return None
        seen = [
            (value.number, self.state.get(value.memory)) if isinstance(value, Value) else value
            for value in outputs
        ]
        return seen, self.state, self.effects


class _Term(tuple[Any, ...]):
    """What stands for a node in the text of an argument."""

    __slots__ = ()


def proved(gm: Any, bodies: list[Any], driver: str) -> bool:
    """Whether the driver's text, over these bodies, computes what a graph does.

    Args:
        gm: the graph as it was captured.
        bodies: modules in the order of their numbers.
        driver: as `driver_text` gives it.
    """
    symbols = Symbols()
    count = len(gm.graph.find_nodes(op="placeholder"))

    def inputs() -> list[Value]:
        numbers = [symbols.of("input", at) for at in range(count)]
        return [Value(number, number) for number in numbers]

    whole, parts = Run(symbols), Run(symbols)
    want = whole.end(whole.call(gm.graph, inputs()))

    def body(module: Any) -> Any:
        return lambda given: parts.call(module.graph, given)

    scope: dict[str, Any] = {BODY.format(at): body(one) for at, one in enumerate(bodies)}
    exec(driver, scope)
    try:
        got = parts.end(scope["call"](inputs()))
    except (AttributeError, KeyError, TypeError, ValueError):  # a name that was dropped too early
        return False
    return want is not None and want == got
