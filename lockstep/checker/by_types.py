"""A verdict by the types alone, where values are not known: at full size, or on some of the ranks.

The types decide here, and what they do not know is never a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lockstep import _compat
from lockstep.checker import order
from lockstep.checker.finding import Report
from lockstep.checker.inference.rules.context import is_tensor
from lockstep.checker.inference.types import Typing, infer
from lockstep.checker.placement import few, is_constant, own_batches
from lockstep.checker.world import World


def judge_by_types(
    world: World, data: tuple[str, ...] = (), pending: Mapping[str, str] | None = None
) -> Report:
    """Judge a step by the order of its collectives and by types: nothing is computed.

    Args:
        world: the origin and its neighbour along each axis at least. An input that is a fake has no
            values: its layout is what a claim or a mark says, else not known. `world` is changed.
        data, pending: as for `ls.check`.

    Returns:
        The report. Its findings are definite; an input that nothing declares is undecided.
    """
    report = Report()
    world.data = data
    own_batches(world, data)
    _forget_constants(world)
    with report.timed("order"):
        wrong_order = order.judge(world)
    with report.timed("types"):
        typing = infer(world, frozenset(pending or ()))
    report.findings = wrong_order or list(typing.findings)
    report.undecided = _undeclared(world)
    report.unknown_ops, report.nodes = typing.unknown, typing.nodes
    report.untyped = Counter(typing.untyped.values())
    report.established = _established(world, typing, bool(wrong_order), pending or {})
    return report


def _forget_constants(world: World) -> None:
    """Take parameters that hold one number for unknown: such values say nothing of a layout."""
    for at, spec in enumerate(world.ranks[0].graph.inputs):
        values = [trace.inputs[at] for trace in world.ranks]
        if spec.kind == "param" and not any(map(_compat.is_fake, values)):
            if all(map(is_constant, values)):
                for trace in world.ranks:
                    trace.inputs[at] = trace.graph.fakes[at]


def _undeclared(world: World) -> list[str]:
    """One line for all inputs of unknown layout along the same axes, with the declaration."""
    first, names = world.ranks[0], dict[tuple[str, ...], list[str]]()
    nodes = first.graph.gm.graph.find_nodes(op="placeholder")
    for at, (node, spec) in enumerate(zip(nodes, first.graph.inputs, strict=True)):
        if spec.kind == "grad" or not any(_compat.is_fake(t.inputs[at]) for t in world.ranks):
            continue
        said = {*first.marks.get(spec.name, {}), *first.claims.get(node.name, {})}
        said |= set(world.data) if spec.kind == "arg" else set()
        open_ = tuple(axis for axis in world.wide if axis not in said)
        if open_:
            names.setdefault(open_, []).append(spec.name)
    return [
        f"the layout of {few(held)} along {', '.join(axes)} is not known: declare it: "
        f"ls.typed({held[0]}, {', '.join(f'{axis}=...' for axis in axes)})"
        for axes, held in names.items()
    ]


def _established(
    world: World, typing: Typing, disordered: bool, pending: Mapping[str, str]
) -> list[str]:
    mesh = " x ".join(f"{axis}={size}" for axis, size in world.mesh.items())
    at = ", ".join(str(tuple(trace.coordinate.values())) for trace in world.ranks)
    lines = ["types only: gold and twin did not run"]
    if not disordered:
        count = len(world.ranks[0].graph.schedule)
        lines.append(f"order: {count} collectives, the same on each traced rank")
    if typing.apart:
        lines.append("types: not judged, the ranks' programs differ")
    else:
        values = [node for node in world.ranks[0].nodes if is_tensor(node)]
        known = [n for n in values if set(world.wide) <= set(typing.types.get(n.name, ()))]
        lines.append(f"types: {len(known)} of {len(values)} values typed along every axis")
    lines.append(f"under: mesh {mesh}, traced at {at}; these sizes, this path")
    if pending:
        lines.append("pending: " + ", ".join(f"{way} over {axis}" for axis, way in pending.items()))
    return lines
