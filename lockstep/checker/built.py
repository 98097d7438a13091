"""What the types can be sure of in the very graph that is shipped, on the one rank that has it.

No value is known here, and no other rank's graph: each of them has this one. What nothing declares
is not known, and what is not known is never a fault; but a gradient of the rank's own batch that no
collective touches is, whatever else is unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Node

from lockstep.capture.checking import Checking
from lockstep.capture.state import State
from lockstep.checker.consumed import Gradient, judge_gradients
from lockstep.checker.finding import Finding, Report
from lockstep.checker.inference.flow import Flow
from lockstep.checker.inference.graphs import graphs_of
from lockstep.checker.inference.kinds import PARTIAL, Kind
from lockstep.checker.inference.rules.context import Fault, is_tensor
from lockstep.checker.inference.rules.registry import op_name
from lockstep.checker.inference.ties import Ties
from lockstep.checker.inference.types import grouped
from lockstep.checker.placed import placed, reads_coordinates, settle
from lockstep.checker.relaid import relaid_on
from lockstep.checker.source import text_of
from lockstep.checker.unshared import Along
from lockstep.checker.wording import Writer
from lockstep.checker.world import RankTrace, World, trace_of


@dataclass(frozen=True)
class Built:
    """What was found of a program.

    Args:
        unknown: axis -> number of values whose type is not known.
        replicas: axis -> the parameters that the step takes for equal on all ranks.
        own: axis -> the parameters that nothing was found of because the ranks' values differ.
        types: value -> axis -> its type, as far as it is known.
        cotangents: value -> the value that is its gradient.
    """

    report: Report
    unknown: dict[str, int]
    replicas: dict[str, list[str]]
    own: dict[str, list[str]]
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    cotangents: dict[str, str] = field(default_factory=dict)


NONLINEAR, ADDED, MIXED = "LS502", "LS501", ("LS503", "LS504")


def judge_built(
    checking: Checking,
    state: State,
    mesh: Any,
    data: tuple[str, ...] = (),
    pending: Mapping[str, str] | None = None,
    apart: Mapping[str, frozenset[str]] | None = None,
) -> Built:
    """Judge the program that a capture has noted, by types alone.

    Args:
        checking: of a finished capture that ships.
        state: what the captured call reached.
        mesh: the job's DeviceMesh; None: nothing is judged.
        data, pending: as for `ls.check`.
        apart: parameter -> axes along which the ranks are known to hold other values of it; such
            a parameter is no replica there.

    Returns:
        A report whose findings are definite, what was not known, and which inputs are replicas.
    """
    report = Report()
    found = Built(report, {}, {}, {})
    if mesh is None or checking.graph is None:
        report.established.append("nothing: the step names no mesh")
        return found
    sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
    origin = dict.fromkeys(sizes, 0)
    graph = checking.graph
    with report.timed("types"):
        there = {axis: {**origin, axis: 1} for axis, size in sizes.items() if size > 1}
        reads = reads_coordinates(graph)
        graphs = {a: placed(graph, c, sizes) if reads else graph for a, c in there.items()}
        settle(graph.gm, origin, sizes)
        trace = trace_of(graph, checking.notes, graph.fakes, state, mesh, 0, origin)
        ranks = [trace]
        for axis, place in there.items():
            ranks.append(dataclasses.replace(trace, coordinate=place, graph=graphs[axis]))
        world = World(sizes, ranks, data)
        found.cotangents.update(trace.cotangents)
        for axis in world.wide:
            judge = _Axis(world, axis, axis in (pending or {}), apart or {})
            report.findings += judge.findings()
            found.unknown[axis] = judge.count(report)
            found.replicas[axis] = judge.replicas()
            found.own[axis] = judge.own
            for node, kind in judge.flow.kinds.items():
                if isinstance(kind, Kind) and kind.tag != "?":
                    found.types.setdefault(node.name, {})[axis] = repr(kind)
    return found


class _Axis:
    """The judgement along one axis."""

    def __init__(
        self, world: World, axis: str, pending: bool, apart: Mapping[str, frozenset[str]]
    ) -> None:
        self.world, self.axis, self.pending, self.apart = world, axis, pending, apart
        self.trace: RankTrace = world.ranks[0]
        self.own: list[str] = []
        self.flow = Flow(graphs_of(world, axis, rows=False)).run()
        graphs = self.flow.graphs
        self.ties = Ties(self.flow, frozenset(graphs.cotangents) if graphs.roots else None).run()
        inputs = [node for node in self.trace.nodes if node.op == "placeholder"]
        specs = self.trace.graph.inputs
        self._by_name = {node.name: node for node in self.trace.nodes}
        self.names = {node: spec.name for node, spec in zip(inputs, specs, strict=True)}

    def count(self, report: Report) -> int:
        """Say how many values have a type along this axis; returns how many have none."""
        values = [node for node in self.trace.nodes if is_tensor(node)]
        known = [n for n in values if isinstance(k := self.flow.kinds.get(n), Kind) and k.type()]
        report.established.append(
            f"types along {self.axis}: nothing contradicts {len(known)} of {len(values)} values"
        )
        report.nodes = len(values)
        for name, times in self.flow.unknown.items():
            report.unknown_ops[name] = max(times, report.unknown_ops[name])
        return len(values) - len(known)

    def replicas(self) -> list[str]:
        """Parameters that the step takes for equal on all ranks: declared so, or their gradient
        is, or will be once what is pending was done."""
        found = []
        for node, spec in zip(self.names, self.trace.graph.inputs, strict=True):
            claim = self.flow.graphs.claims.get(node)
            held = self.trace.grads.get(spec.name)
            kind = self.flow.kinds.get(self._by_name[held]) if held is not None else None
            reduced = isinstance(kind, Kind) and kind.tag == "E"
            if spec.kind != "param" or (claim is not None and claim.kind not in "RI"):
                continue
            if claim is not None or reduced or (self.pending and held is not None):
                found.append(spec.name)
        return found

    def findings(self) -> list[Finding]:
        """The definite faults, worded; at most one a line."""
        writer = Writer(self.flow, self.ties.ties, self.names)
        found: dict[str, Finding] = {}
        for fault in self._faults():
            finding = writer.finding(fault)[0]
            found.setdefault(finding.line, finding)
        unshared = self._unshared()
        if unshared:
            finding = self._worded(writer.finding(grouped(unshared)[0])[0])
            found.setdefault(finding.line, finding)
        return list(found.values())

    # -- by the rules

    def _faults(self) -> Iterator[Fault]:
        gradients = list(self._gradients())
        partial = [f for f in judge_gradients(self.flow, gradients) if "P" in f.got]
        lossy = _before(self.flow.graphs.roots)
        told: set[Node] = set()
        for fault in (*self.flow.faults, *self.ties.faults):
            if fault.code in MIXED and fault.operand is not None:
                above = _before([fault.operand, *filter(None, [fault.other])])
                caused = {f.operand for f in partial if f.operand in above}
                if caused:
                    told |= {node for node in caused if node is not None}
                    yield fault
            elif fault.node in lossy and fault.code in (NONLINEAR, ADDED):
                if fault.code == NONLINEAR or not _scaled(fault.other):
                    told |= {node for node in _before([fault.node]) if node in self.names}
                    yield fault
        yield from grouped([f for f in partial if f.operand not in told])

    def _gradients(self) -> Iterator[Gradient]:
        """The gradients of parameters whose layout is declared."""
        for gradient in self._all_gradients():
            wanted = gradient.wanted
            if wanted is not None and wanted.kind in "RI":
                yield gradient

    def _all_gradients(self) -> Iterator[Gradient]:
        if self.pending or not self.trace.notes.roots:
            return
        claims, cotangents = self.flow.graphs.claims, self.flow.graphs.cotangents
        apart = relaid_on(self.trace.graph, self.axis)
        for node, name in self.names.items():
            held = self.trace.grads.get(name)
            if held is not None and name not in apart:
                raw = cotangents.get(node)
                yield Gradient(name, node, self._by_name[held], raw, claims.get(node))

    # -- by who reads what

    def _unshared(self) -> list[Fault]:
        """Gradients of the rank's own batch that the step leaves unreduced."""
        kinds = [
            PARTIAL if sent_back(seed) else self.flow.kinds.get(root)
            for root, seed in self.trace.notes.roots
        ]
        if self.axis not in self.world.data or not kinds:
            return []
        if not all(isinstance(kind, Kind) and kind.tag == "P" for kind in kinds):
            return []
        others = [axis for axis in self.world.mesh if axis != self.axis]
        along = Along(self.trace, self.axis, others)
        found = []
        for gradient in self._all_gradients():
            declared = gradient.wanted is not None and gradient.wanted.kind not in "RI"
            if declared or not along.alone(gradient.node, *filter(None, [gradient.raw])):
                continue
            if self.axis in self.apart.get(gradient.name, ()):
                self.own.append(gradient.name)
            else:
                found.append(self._fault(gradient, repr(kinds[0])))
        return found

    def _fault(self, gradient: Gradient, got: str) -> Fault:
        return Fault(
            "LS514",
            f"{gradient.name}.grad is still partial on {self.axis} when the optimizer reads it",
            f"it is of this rank's batch alone, data={self.axis!r} says that the ranks' differ, "
            "and nothing adds them up",
            gradient.raw or gradient.node,
            gradient.parameter,
            None,
            got,
            "the whole gradient, R or I",
        )

    def _worded(self, finding: Finding) -> Finding:
        """At the backward that leaves the gradients so, with what to write after it."""
        root = finding.what.partition(".")[0]
        way = "mean" if "mean" in finding.got else "sum"
        lines = [line for line in dict.fromkeys(self.trace.notes.backwards) if line]
        line = lines[-1] if lines else finding.line
        related = (finding.line, *finding.related) if finding.line != line else finding.related
        fix = f'ls.reduce_grads({root}, {self.axis}="{way}")   after this line'
        return dataclasses.replace(
            finding, line=line, source=text_of(line).strip(), related=related, fix=fix
        )


def sent_back(seed: Node | None) -> bool:
    """Whether a backward begins by a gradient that the next stage of a pipeline has sent back: it
    is of the same batch as the loss there."""
    return seed is not None and op_name(seed.target) == "lockstep.recv"


def _before(nodes: list[Node]) -> set[Node]:
    seen: set[Node] = set()
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return seen


def _scaled(node: Node | None) -> bool:
    """Whether a value was multiplied by a number, as a bias that each rank adds a share of."""
    while node is not None and node.op == "call_function":
        numbers = any(isinstance(leaf, (int, float)) for leaf in node.args[1:2])
        if op_name(node.target) in ("mul", "div") and numbers:
            return True
        node = node.all_input_nodes[0] if node.all_input_nodes else None
    return False
