"""Types of a whole step along every axis, and what contradicts them.

Types explain: they name a line, an axis and what is missing there. What they do not know is never
an error.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from lockstep import _compat
from lockstep.checker.consumed import Gradient, judge_gradients, judge_loss
from lockstep.checker.finding import Finding
from lockstep.checker.inference.flow import Flow
from lockstep.checker.inference.graphs import aligned, graphs_of
from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules import op_name
from lockstep.checker.inference.rules.context import Fault
from lockstep.checker.inference.ties import Ties
from lockstep.checker.relaid import relaid_on
from lockstep.checker.repair.repairs import MANY, Repair
from lockstep.checker.wording import Writer
from lockstep.checker.world import RankTrace, World
from lockstep.spmd.types import Type


@dataclass
class Typing:
    """What the types of a step are.

    Args:
        types: node name -> axis -> its type; left out where it is not known.
        findings: in the order of the program, axis by axis.
        repairs: as long as `findings`: candidate repairs of each, the cheapest first.
        unknown: operators without a rule, with the number of their nodes.
        untyped: nodes of whose type nothing is known along some axis, by name, with operator.
        nodes: how many nodes were typed.
        apart: whether the ranks' graphs differ in structure, so that nothing could be typed.
    """

    types: dict[str, dict[str, Type]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    repairs: list[list[Repair]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    untyped: dict[str, str] = field(default_factory=dict)
    nodes: int = 0
    apart: bool = False


def infer(world: World, pending: frozenset[str] = frozenset()) -> Typing:
    """Type every value of a step, forward and backward and after, along every wide axis.

    Args:
        world: the captures of all ranks, or of the origin and a neighbour along each axis; graphs
            of one structure.
        pending: axes along which something after the step reduces the gradients.

    Returns:
        Types and findings; empty and `apart` where the graphs differ in structure.
    """
    typing = Typing(nodes=len(world.ranks[0].nodes))
    if not aligned(world):
        typing.apart = True
        return typing
    for axis in world.wide:
        _infer_axis(world, axis, typing, axis in pending)
    return typing


def _infer_axis(world: World, axis: str, typing: Typing, pending: bool) -> None:
    graphs = graphs_of(world, axis)
    flow = Flow(graphs).run()
    if flow.faults and not Flow(plain := graphs_of(world, axis, rows=False)).run().faults:
        graphs, flow = plain, Flow(plain).run()  # the batch does not lie in rows
    trace = world.ranks[0]
    carries = frozenset(graphs.cotangents) if graphs.roots else None
    ties = Ties(flow, carries).run()
    for name, count in flow.unknown.items():
        typing.unknown[name] = max(count, typing.unknown[name])
    for node in graphs.nodes[0]:
        kind = flow.kinds.get(node)
        if node.op == "call_function" and _unknown(kind):
            typing.untyped[node.name] = op_name(node.target)
        found = kind.type() if isinstance(kind, Kind) else None
        if found is not None:
            typing.types.setdefault(node.name, {})[axis] = ties.ties.get(node, found)
    specs = trace.graph.inputs
    inputs = [node for node in graphs.nodes[0] if node.op == "placeholder"]
    names = {node: spec.name for node, spec in zip(inputs, specs, strict=True)}
    gradients = [] if pending else list(_gradients(world, flow, names))
    writer = Writer(flow, ties.ties, names)
    for fault in told(flow, ties, gradients):
        finding, repairs = writer.finding(fault)
        if any(f.line == finding.line and f.axis == axis for f in typing.findings):
            continue
        typing.findings.append(finding)
        typing.repairs.append(repairs)


def _unknown(kind: Any) -> bool:
    kinds = kind if isinstance(kind, list) else [kind]
    return all(not isinstance(k, Kind) or k.tag == "?" for k in kinds)


def _gradients(world: World, flow: Flow, names: dict[Node, str]) -> list[Gradient]:
    trace = world.ranks[0]
    by_name = {node.name: node for node in flow.graphs.nodes[0]}
    found = []
    apart = relaid_on(trace.graph, flow.graphs.axis)
    for parameter, name in names.items():
        held = trace.grads.get(name)
        if held is None or name in apart:
            continue
        wanted = flow.graphs.claims.get(parameter)
        kind = flow.kinds.get(parameter)
        if wanted is None and isinstance(kind, Kind) and not (kind.same and _constant(trace, name)):
            wanted = kind.type()
        raw = flow.graphs.cotangents.get(parameter)
        found.append(Gradient(name, parameter, by_name[held], raw, wanted))
    return found


def _constant(trace: RankTrace, name: str) -> bool:
    """Whether an input holds one number: then its being equal on all ranks tells nothing."""
    at = next(i for i, spec in enumerate(trace.graph.inputs) if spec.name == name)
    value = trace.inputs[at]
    if _compat.is_fake(value):
        return True
    return value.numel() < 2 or bool((value == value.flatten()[0]).all())


def told(flow: Flow, ties: Ties, gradients: list[Gradient]) -> list[Fault]:
    """Choose what to report: a fault that another one causes is left out.

    A fault of the forward shows again in the backward, and in the gradients of what lies before it.
    """
    phases = flow.graphs.phases
    forward = [f for f in flow.faults if phases.get(f.node, "forward") in ("input", "forward")]
    forward = _in_order(flow, forward + ties.faults)
    backward = [f for f in flow.faults if phases.get(f.node) == "backward"]
    after = [f for f in flow.faults if phases.get(f.node) == "after"]
    losses = [] if forward else judge_loss(flow, ties.ties)
    early = forward or losses
    if early:
        backward = []
    before = _ancestors([fault.node for fault in forward])
    taken = [f for f in judge_gradients(flow, gradients) if f.operand not in before]
    if losses or backward:
        taken = []
    return [*forward, *losses, *backward[:2], *after, *grouped(taken)]


def _in_order(flow: Flow, faults: list[Fault]) -> list[Fault]:
    place = {node: i for i, node in enumerate(flow.graphs.nodes[0])}
    found: dict[Node, Fault] = {}
    for fault in sorted(faults, key=lambda f: place.get(f.node, 0)):
        before = _ancestors([fault.node]) if fault.code in ("LS505", "LS506") else set()
        if not before.intersection(found):  # a value that was taken as mended is reduced again
            found.setdefault(fault.node, fault)
    return list(found.values())


def _ancestors(nodes: list[Node]) -> set[Node]:
    seen: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return seen


def grouped(faults: list[Fault]) -> list[Fault]:
    """One finding for all gradients that lack the same thing, with the number of the others."""
    groups: dict[tuple[str, str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.code, fault.got, fault.want), []).append(fault)
    found = []
    for same in groups.values():
        first = same[0]
        rest = f"; {len(same) - 1} {MANY}" if len(same) > 1 else ""
        found.append(
            Fault(
                first.code,
                first.what + rest,
                first.why,
                first.node,
                first.operand,
                first.other,
                first.got,
                first.want,
            )
        )
    return found
