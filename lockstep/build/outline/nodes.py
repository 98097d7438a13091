"""What a call of a graph is to the outliner: a view, a scalar, a write; what it may cross."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from lockstep import _compat
from lockstep.capture.origin import META
from lockstep.capture.schemas import must_stay, returns_its_first_argument, view_of

FREE = "lockstep_free"  # in a node's meta: a scalar that may be computed anew anywhere after it

CUT = "lockstep_cut"  # in a node's meta: no compiler may mix what comes before it with the rest


def calls(graph: Any) -> list[Any]:
    """Return the graph's calls of operators and functions, in order."""
    return [node for node in graph.nodes if node.op == "call_function"]


def phase(node: Any) -> str:
    """Where in the step a call was made: "forward", "backward", "after"; empty where untold."""
    origin = node.meta.get(META)
    return origin.phase if origin is not None and node.op == "call_function" else ""


def is_view(node: Any) -> bool:
    """Whether a call's result shares its first argument's memory and costs nothing to make."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])
    return view_of(node.target)


def is_same(node: Any) -> bool:
    """Whether a call's result is its first argument, by another name."""
    import torch

    aten = torch.ops.aten
    same = node.target in (aten.alias.default, aten.detach.default)
    return same or returns_its_first_argument(node.target)


def base(node: Any) -> Any:
    """Return what a view is of; the node itself where it is none."""
    while is_view(node):
        node = node.args[0]
    return node


def is_scalar(node: Any) -> bool:
    """Whether a call gives a Python number."""
    import torch

    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return node.op == "call_function" and isinstance(node.meta.get("val"), numbers)


def is_size(value: Any) -> bool:
    """Whether a number follows from the inputs' shapes alone."""
    expression = _compat.expression(value)
    return expression is not None and not _unknown(expression)


def stays(node: Any) -> bool:
    """Whether a call does something even where nothing reads it."""
    return must_stay(node.target)


def written(node: Any) -> list[Any]:
    """Return the nodes whose memory a call writes."""
    schema = _compat.schema_or_none(node.target)
    found: list[Any] = []
    for at, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name)
            found += nodes_in(given)
    return found


def nodes_in(value: Any) -> Iterator[Any]:
    """Yield the nodes in nested arguments."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        yield from nodes_in(list(value.values()))
    elif hasattr(value, "op"):
        yield value


def may_cross(node: Any) -> bool:
    """Whether a body may hand a value to another.

    A tensor may, also one that a collective still writes: another body than started it then waits
    for it. So may a size. Not a tuple, nor a number that is read as the program runs, nor what has
    a size of such a number.
    """
    import torch

    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return is_size(value)
    if not isinstance(value, torch.Tensor):
        return False
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    return all(isinstance(size, int) or is_size(size) for size in sizes)


def looks(value: Any) -> Any:
    """Describe what a node gives, for comparison: what a compiled body takes for granted of it."""
    import torch

    if isinstance(value, torch.Tensor):
        return (
            tuple(map(str, value.shape)),
            tuple(map(str, value.stride())),
            str(value.dtype),
            str(value.device),
        )
    if isinstance(value, (tuple, list)):
        return tuple(map(looks, value))
    return (
        str(value) if isinstance(value, torch.SymInt) and is_size(value) else type(value).__name__
    )


def _unknown(expression: Any) -> bool:
    """Whether a formula holds anything but sizes of the inputs, whose symbols begin with an s."""
    return any(not str(symbol).startswith("s") for symbol in expression.free_symbols)
