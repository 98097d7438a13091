"""Takes updates of many tensors apart: an optimizer's foreach operators, tensor by tensor.

A compiler that has no kernel for one, as for `_foreach_addcdiv` over a list of numbers that are
read at each call, calls it as it is: what it reads and makes then lies in memory for all parameters
at once, and is copied into them. Tensor by tensor, each parameter's update is fused, and in place.
On the CPU alone: there a foreach operator is that loop, to the bit.
"""

from __future__ import annotations

import operator
from typing import Any

from lockstep.build.outline.nodes import calls

_FOREACH = "aten::_foreach_"

# By name and overload of a foreach operator: the overload of the operator on one tensor.
_BINARY = {"Scalar": "Tensor", "ScalarList": "Tensor", "List": "Tensor", "Tensor": "Tensor"}
_TERNARY = {"Scalar": "default", "ScalarList": "default"}
_UNARY = {"default": "default"}
_OVERLOADS = {
    **dict.fromkeys(("add", "sub", "mul", "div"), _BINARY),
    **dict.fromkeys(("addcmul", "addcdiv"), _TERNARY),
    **dict.fromkeys(("sqrt", "rsqrt", "neg", "abs", "sign", "exp", "reciprocal"), _UNARY),
    "lerp": {"Scalar": "Scalar", "ScalarList": "Scalar", "List": "Tensor"},
    "copy": _UNARY,
    "zero": _UNARY,
}


def one_by_one(graph: Any) -> int:
    """Take the foreach calls of a graph apart; changes it.

    Returns:
        How many there were.
    """
    count = 0
    for node in calls(graph):
        if any(user.target is not operator.getitem for user in node.users):
            continue
        loop = loop_of(node)
        if loop is None:
            continue
        made = _inlined(graph, node, *loop)
        for user in list(node.users):
            user.replace_all_uses_with(made[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(node)
        count += 1
    return count


def loop_of(node: Any) -> tuple[Any, list[Any]] | None:
    """The loop that a foreach call stands for.

    Returns:
        A graph that gives what the call gives, tensor by tensor, and the nodes that it is to be
        given; None of any other call, and of one that the table does not have.
    """
    import torch

    target = _single(node.target)
    if target is None or not all(map(_is_on_cpu, node.args[0])):
        return None
    graph, places = torch.fx.Graph(), dict[Any, Any]()

    def here(one: Any) -> Any:
        if one not in places:
            places[one] = graph.placeholder(one.name)
            places[one].meta.update(one.meta)
        return places[one]

    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), here)
    made = []
    for at in range(len(args[0])):
        own = [one[at] if isinstance(one, (list, tuple)) else one for one in args]
        called = _called(graph, target, own, kwargs)
        called.meta.update(node.meta | {"val": _value(node, at)})
        made.append(called)
    graph.output(tuple(made))
    return graph, list(places)


def _called(graph: Any, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Call the operator on one tensor.

    `addcdiv` by its parts, in the order of torch's own kernel, (value * a) / b: compilers divide
    first, which rounds otherwise.
    """
    import torch

    aten = torch.ops.aten
    if not target._schema.name.startswith(("aten::addcmul", "aten::addcdiv")):
        return graph.call_function(target, tuple(args), kwargs)
    start, one, other, *scale = args
    scale = scale or [kwargs.get("value", 1)]
    if target._schema.name.startswith("aten::addcmul"):
        return graph.call_function(target, (start, one, other), {"value": scale[0]})
    scaled = graph.call_function(aten.mul.Tensor, (one, scale[0]))
    divided = graph.call_function(aten.div.Tensor, (scaled, other))
    for made in (scaled, divided):
        made.meta["val"] = torch.empty_like(one.meta["val"])
    in_place = target._schema.name.endswith("_")
    return graph.call_function(aten.add_.Tensor if in_place else aten.add.Tensor, (start, divided))


def _inlined(graph: Any, node: Any, loop: Any, given: list[Any]) -> list[Any]:
    """Put a loop before a call; returns the nodes of its results."""
    known = dict(zip(loop.find_nodes(op="placeholder"), given, strict=True))
    with graph.inserting_before(node):
        for one in calls(loop):
            known[one] = graph.node_copy(one, known.__getitem__)
    return [known[one] for one in loop.output_node().args[0]]


def _single(target: Any) -> Any:
    """The operator on one tensor; None where the table has none."""
    import torch

    schema = getattr(target, "_schema", None)
    if schema is None or not schema.name.startswith(_FOREACH):
        return None
    name = schema.name.removeprefix(_FOREACH)
    overload = _OVERLOADS.get(name.removesuffix("_"), {}).get(schema.overload_name or "default")
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, overload, None) if overload and packet is not None else None


def _is_on_cpu(node: Any) -> bool:
    return node.meta["val"].device.type == "cpu"


def _value(node: Any, at: int) -> Any:
    """What the call of one tensor gives: its place in the results, or what it writes to."""
    value = node.meta.get("val")
    return value[at] if isinstance(value, (list, tuple)) else node.args[0][at].meta["val"]
