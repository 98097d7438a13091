"""Outputs that are inputs, or views of them: kept out of the compiler and rebuilt by our own text.

A compiler is free to return a copy where eager returns an alias. What an output shares with an
input is known from the fake tensors' storages, so the compiled part need not return it at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep import _compat
from lockstep.build.in_order import messages
from lockstep.capture.schemas import returns_its_first_argument
from lockstep.errors import LoweringError

_PLAIN = (type(None), bool, int, float, complex, str)


@dataclass(frozen=True)
class Split:
    """A graph that returns only new values, and the text that puts all outputs together.

    Args:
        gm: a copy of the graph; its outputs are single, and share nothing with an input.
            Its last message is one of them, though nothing reads it: a compiler would drop it.
        epilogue: module text that rebinds `call`; empty where the outputs are as they were.
    """

    gm: Any
    epilogue: str


def split_outputs(gm: Any) -> Split:
    """Take the outputs that alias an input out of a graph.

    Raises:
        LoweringError: LS200, an alias that no stride describes: another dtype, a conjugate.
    """
    import torch

    graph = torch.fx.Graph()
    outputs = graph.graph_copy(gm.graph, {})
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    if not isinstance(outputs, (tuple, list)):
        raise LoweringError("the graph does not return a flat tuple", got=type(outputs).__name__)
    storages: dict[Any, int] = {}
    for index, node in enumerate(placeholders):
        if _is_tensor(node):
            storages.setdefault(_storage(node), index)
    writer = _Writer(placeholders, storages)
    parts = [writer.part(value) for value in outputs]
    unread = [node for node in messages(graph)[-1:] if node not in writer.kept]
    graph.output((*writer.kept, *unread))
    return Split(torch.fx.GraphModule({}, graph), _epilogue(writer, parts, outputs, unread))


def _epilogue(writer: _Writer, parts: list[str], outputs: Sequence[Any], unread: list[Any]) -> str:
    if not unread and parts == [f"made[{index}]" for index in range(len(outputs))]:
        return ""
    lines = ["", "_compiled = call", "", "def call(inputs):"]
    lines += [f"    held_{index} = inputs[{index}]" for index in sorted(writer.held)]
    lines += ["    made = _compiled(inputs)", f"    return [{', '.join(parts)}]", ""]
    return "\n".join(lines)


class _Writer:
    """Turns one output after another into an expression over `made` and `held_<input>`."""

    def __init__(self, placeholders: list[Any], storages: dict[Any, int]) -> None:
        self._placeholders, self._storages = placeholders, storages
        self.kept: list[Any] = []
        self.held: set[int] = set()

    def part(self, value: Any) -> str:
        if isinstance(value, _PLAIN):
            return repr(value)
        if _is_tensor(value) and _storage(value) in self._storages:
            return self._alias(value)
        if value not in self.kept:
            self.kept.append(value)
        return f"made[{self.kept.index(value)}]"

    def _alias(self, node: Any) -> str:
        origin = _written(node)
        if origin.op == "placeholder":
            index = self._placeholders.index(origin)
            self.held.add(index)
            return f"held_{index}"
        index = self._storages[_storage(node)]
        self.held.add(index)
        base, view = self._placeholders[index].meta["val"], node.meta["val"]
        delta = view.storage_offset() - base.storage_offset()
        numbers = (*view.shape, *view.stride(), delta)
        odd = view.dtype != base.dtype or view.is_conj() or view.is_neg()
        if odd or not all(type(number) is int for number in numbers):
            raise LoweringError(
                f"an output is a view of an input that strides don't describe: {node.target}",
                where=str(node),
                fix=["return a copy of it (`.clone()`)", 'backend="graph"'],
            )
        offset = f"held_{index}.storage_offset() + {delta}"
        return f"held_{index}.as_strided({list(view.shape)}, {list(view.stride())}, {offset})"


def _is_tensor(node: Any) -> bool:
    import torch

    return isinstance(getattr(node, "meta", {}).get("val"), torch.Tensor)


def _storage(node: Any) -> Any:
    return _compat.storage_identity(node.meta["val"])


def _written(node: Any) -> Any:
    """Follow in-place operators, which return their first argument itself, back to it."""
    while node.op == "call_function" and returns_its_first_argument(node.target):
        node = node.args[0]
    return node
