"""Parts with the same form are one body; the graph becomes a list of calls of bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.build.outline.nodes import base, looks, may_cross, written


@dataclass(frozen=True)
class BodyCall:
    """One call of a body.

    Args:
        body: which.
        inputs: the graph's nodes that go in.
        outputs: the graph's nodes that come out; None for what this call has no use for.
    """

    body: int
    inputs: list[Any]
    outputs: list[Any]


class CutError(Exception):
    """Parts that can't be bodies; the text says why."""


def bodies_of(parts: list[list[Any]]) -> tuple[list[Any], list[BodyCall]]:
    """Make one module of each form of a part.

    Returns:
        The modules, whose output is a tuple, and the calls in the parts' order.

    Raises:
        CutError: something would go from part to part that may not.
    """
    groups: dict[Any, list[int]] = {}
    inputs = [_inputs(part) for part in parts]
    used = [_used(part) for part in parts]
    for at, part in enumerate(parts):
        groups.setdefault(_form(part, inputs[at]), []).append(at)
    modules, found = [], {}
    for number, places in enumerate(groups.values()):
        # A value that one call needs is an output of them all.
        length = len(parts[places[0]])
        kept = [i for i in range(length) if any(used[at][i] for at in places)]
        modules.append(_module(parts[places[0]], inputs[places[0]], kept))
        for at in places:
            outputs = [parts[at][i] if used[at][i] else None for i in kept]
            found[at] = BodyCall(number, inputs[at], outputs)
            _check(parts[at], found[at])
    return modules, [found[at] for at in range(len(parts))]


def _inputs(part: list[Any]) -> list[Any]:
    inside = set(part)
    return list(dict.fromkeys(a for n in part for a in n.all_input_nodes if a not in inside))


def _used(part: list[Any]) -> list[bool]:
    inside = set(part)
    return [any(user not in inside for user in node.users) for node in part]


def _form(part: list[Any], inputs: list[Any]) -> Any:
    """All that a compiler sees of a part: calls, wiring, and the looks of all values."""
    import torch

    names = {node: _Name(f"@{i}") for i, node in enumerate(inputs)}
    names |= {node: _Name(f"%{i}") for i, node in enumerate(part)}

    def row(node: Any) -> Any:
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), names.__getitem__)
        return (str(node.target), repr(arguments), looks(node.meta.get("val")))

    return (tuple(looks(n.meta.get("val")) for n in inputs), tuple(map(row, part)))


class _Name(str):
    """What a node is called in the text of an argument."""

    __repr__ = str.__str__


def _module(part: list[Any], inputs: list[Any], kept: list[int]) -> Any:
    import torch

    graph, copies = torch.fx.Graph(), {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta["val"] = node.meta["val"]
    for node in part:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[part[i]] for i in kept))
    return torch.fx.GraphModule({}, graph)


def _check(part: list[Any], call: BodyCall) -> None:
    """A body is compiled as if its inputs shared no memory, and so it must be."""
    odd = [n for n in call.inputs if n.op == "call_function" and not may_cross(n)]
    if odd:
        raise CutError(f"{odd[0].target} gives what no body may hand to another")
    targets = {base(target) for node in part for target in written(node)}
    if any(target.op == "call_function" for target in targets.difference(part)):
        # A compiler may give two results one memory, where nothing in their own body writes it.
        raise CutError("a body would write in place what another has made")
    if any(base(n) is not n and base(n) in targets for n in call.inputs):
        raise CutError("a body would write what it also reads as a view")
