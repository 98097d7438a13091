"""The simulated world: one capture of the same step for each rank, all in this process."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep._compat_dtensor import forget_divisions
from lockstep.capture.binding import Call, Step
from lockstep.capture.capture import capture_call
from lockstep.capture.checking import Checking, Notes
from lockstep.capture.graph import StepGraph
from lockstep.capture.hooks import swapped
from lockstep.capture.marks import marks_of
from lockstep.capture.origin import META, Origin
from lockstep.capture.state import State, collect
from lockstep.checker.inputs import input_values, said_of
from lockstep.spmd import mesh as axes
from lockstep.spmd.claims import Recording, recording_claims
from lockstep.spmd.types import Type

Types = dict[str, Type]
How = Callable[[Step, Call, State, Checking], StepGraph]
SEED = 20


@dataclass
class RankTrace:
    """One rank's capture, and the values that its inputs have.

    Args:
        rank: its number in the mesh, row-major.
        inputs: one a graph input, in order; floating ones are float64, parameters jittered. A fake
            stands for values that are not known.
        claims: node name -> axis -> the type that the user claimed for its value.
        marks: parameter name -> axis -> the type that Megatron's attributes mean.
        cotangents: forward node name -> the backward node that holds its gradient, where there is
            exactly one.
        grads: parameter name -> the node of the gradient that the optimizer takes; None: it has no
            gradient when the step ends.
        phases: node name -> "input", "forward", "backward" or "after"; unlike an origin's phase,
            everything that is computed from gradients is "after".
        notes: what the capture noted; its nodes are those of `graph.gm`.
    """

    rank: int
    coordinate: dict[str, int]
    graph: StepGraph
    inputs: list[torch.Tensor]
    notes: Notes
    claims: dict[str, Types] = field(default_factory=dict)
    marks: dict[str, Types] = field(default_factory=dict)
    cotangents: dict[str, str] = field(default_factory=dict)
    grads: dict[str, str | None] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        """The graph's nodes in order."""
        return list(self.graph.gm.graph.nodes)

    def placeholder(self, name: str) -> Node:
        """The node of an input, by the input's name."""
        at = next(i for i, spec in enumerate(self.graph.inputs) if spec.name == name)
        return list(self.graph.gm.graph.find_nodes(op="placeholder"))[at]


@dataclass
class World:
    """The captured ranks of a mesh, in row-major order over its axes: all of them, or some.

    Methods name a rank by its place in `ranks`; where all are captured, that is its number.

    Args:
        mesh: axis -> size, outermost first.
        ranks: the first is the origin. All witnesses but the types need every rank.
        data: the axes along which batches differ, where values are not known.
        rounded: a live run in the step's own dtypes; numbers that Python read are not exact.
    """

    mesh: dict[str, int]
    ranks: list[RankTrace]
    data: tuple[str, ...] = ()
    rounded: bool = False

    def group(self, rank: int, axis: str) -> list[int]:
        """The ranks of this rank's group along an axis, by coordinate; "world" is all of them."""
        return self.tied(rank, [axis] if axis != axes.WORLD else list(self.mesh))

    def tied(self, rank: int, over: list[str]) -> list[int]:
        """The ranks that differ from this one along the given axes alone."""
        here = self.ranks[rank].coordinate
        return [
            place
            for place, other in enumerate(self.ranks)
            if all(other.coordinate[a] == here[a] for a in self.mesh if a not in over)
        ]

    def groups(self, over: list[str]) -> list[list[int]]:
        """All ranks, divided into groups that vary along the given axes alone."""
        found: list[list[int]] = []
        for rank in range(len(self.ranks)):
            group = self.tied(rank, over)
            if group not in found:
                found.append(group)
        return found

    @property
    def wide(self) -> list[str]:
        """The axes of more than one rank."""
        return [name for name, size in self.mesh.items() if size > 1]


def capture_world(
    step: Callable[..., Any],
    make: Callable[[Any], Any],
    mesh: Mapping[str, int],
    by_shape: bool = False,
) -> World:
    """Capture a step for the ranks of a mesh, in this process and with no other.

    Args:
        step: as for `ls.compile`.
        make: called on each simulated rank with its DeviceMesh; builds that rank's arguments.
            Returns (args, kwargs), or the tuple of args alone. Random numbers start from the same
            seed on each rank.
        mesh: axis -> size, outermost first.
        by_shape: `make` makes fakes, which take no memory and have no values; and only the origin
            and its neighbour along each axis are captured, not every rank.

    Returns:
        The captures, with no values jittered yet. A real job's process groups are as before.

    Raises:
        CaptureError: the step cannot be captured, at its line.
    """
    ranks = []
    for rank, place in enumerate(itertools.product(*map(range, mesh.values()))):
        if by_shape and sum(place) > 1:
            continue
        coordinate = dict(zip(mesh, place, strict=True))
        with simulated_rank(rank, mesh) as made:
            ranks.append(
                capture_rank(step, _by_shape(make) if by_shape else make, made, rank, coordinate)
            )
    return World(dict(mesh), ranks)


def _by_shape(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What builds the arguments out of fakes; initial values are not drawn, nor read therefore."""
    drawing = [
        f for name, f in vars(torch.nn.init).items() if name.endswith("_") and name[0] != "_"
    ]

    def undrawn(_original: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if args else kwargs["tensor"]

    def fakes(mesh: Any) -> Any:
        mode = _compat.fake_mode()
        mode.allow_non_fake_inputs = True
        with mode, swapped(dict.fromkeys(drawing, undrawn)):
            return make(mesh)

    return fakes


@contextlib.contextmanager
def simulated_rank(rank: int, mesh: Mapping[str, int]) -> Iterator[Any]:
    """Be one rank of a job of this mesh while inside; gives its DeviceMesh."""
    from torch.distributed.device_mesh import init_device_mesh

    count = math.prod(mesh.values())
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    before = {name: os.environ.get(name) for name in numbers}
    try:
        os.environ.update({name: str(number) for name, number in numbers.items()})
        with axes.apart(), _compat.fake_process_group(rank, count), torch.random.fork_rng([]):
            made = init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
            axes.register(made)
            torch.manual_seed(SEED)
            with _cut_alone():
                yield made
    finally:
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old


@contextlib.contextmanager
def _cut_alone() -> Iterator[None]:
    """Let `distribute_tensor` cut what this rank has while inside: no other one sends a part of it.

    Simulated ranks draw the same numbers.
    """
    module = sys.modules.get("torch.distributed.tensor")  # it is slow to import

    def cut(original: Any, args: Any, kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "src_data_rank": None})

    forget_divisions()
    with swapped({module.distribute_tensor: cut} if module is not None else {}):
        yield
    forget_divisions()


def capture_rank(
    function: Callable[..., Any],
    make: Callable[[Any], Any],
    made: Any,
    rank: int,
    coordinate: dict[str, int],
    how: How = capture_call,
) -> RankTrace:
    """Capture a step for the rank that this process plays; see `capture_world`, `trace_call`."""
    with recording_claims() as said:
        args, kwargs = arguments_of(make(made))
    step = Step(function)
    return trace_call(step, step.call(args, kwargs), said, made, rank, coordinate, how)


def trace_call(
    step: Step,
    call: Call,
    said: Recording,
    mesh: Any,
    rank: int,
    coordinate: dict[str, int],
    how: How = capture_call,
) -> RankTrace:
    """Capture one call for a check, on the rank that this process is or plays.

    Args:
        said: the claims that were made while the call's arguments were built.
        mesh: the rank's DeviceMesh.
        rank, coordinate: the rank's place in it, row-major.
        how: what makes the graph.

    Returns:
        The capture, with the values that the inputs have now; nothing is jittered yet.

    Raises:
        CaptureError: the step cannot be captured, at its line.
    """
    state = collect(call)
    checking = Checking()
    graph = how(step, call, state, checking)
    values = input_values(graph, call, state)
    trace = trace_of(graph, checking.notes, values, state, mesh, rank, coordinate)
    for name, types in said_of(said, graph, call, state).items():
        trace.claims[name] = {**types, **trace.claims.get(name, {})}
    return trace


def trace_of(
    graph: StepGraph,
    notes: Notes,
    values: list[torch.Tensor],
    state: State,
    mesh: Any,
    rank: int,
    coordinate: dict[str, int],
) -> RankTrace:
    """Bring together a graph that was captured with notes, and what is known of its inputs.

    Args:
        values: of the inputs, in order; fakes where they are not known.
        state: what the call reached; its parameters' marks are read.
        mesh, rank, coordinate: as for `trace_call`.
    """
    _charge_to_callers(notes)
    trace = RankTrace(rank, coordinate, graph, values, notes)
    trace.phases = _phases(graph)
    trace.marks = marks_of(state, mesh)
    _fill(trace, state)
    return trace


def _charge_to_callers(notes: Notes) -> None:
    """Charge what an autograd Function computes to the line that applies it: the user's own."""
    for node, line in notes.outer.items():
        origin = node.meta.get(META)
        if origin is not None and line:
            node.meta[META] = replace(origin, line=line)


def arguments_of(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `make` gave, as positional and keyword arguments."""
    if isinstance(made, tuple) and len(made) == 2:
        first, second = made
        if isinstance(first, tuple) and isinstance(second, dict):
            return first, second
    return (made if isinstance(made, tuple) else (made,)), {}


def _fill(trace: RankTrace, state: State) -> None:
    """Bring the capture's notes, which hold nodes, to names."""
    alive = set(trace.nodes)
    for claim in trace.notes.claims:
        if claim.node in alive:
            trace.claims.setdefault(claim.node.name, {}).update(claim.types)
    for node, held in trace.notes.cotangents.items():
        if len(held) == 1 and node in alive:
            trace.cotangents[node.name] = held[0].name
    output = trace.graph.gm.graph.output_node().args[0]
    inputs = list(trace.graph.gm.graph.find_nodes(op="placeholder"))
    names = [spec.name for spec in trace.graph.inputs]
    for at, spec in enumerate(trace.graph.inputs):
        if spec.kind == "grad":
            trace.grads[spec.name.removesuffix(".grad")] = inputs[at].name
    for slot in state.parameters:
        trace.grads.setdefault(slot.name, None)
    for effect in trace.graph.effects:
        if effect.kind != "grad":
            continue
        held_by: Any = None
        if effect.input is not None:
            held_by = inputs[effect.input]
        elif effect.output is not None:
            held_by = output[effect.output]  # type: ignore[index]
        trace.grads[effect.name] = held_by.name if held_by is not None else None
    fakes = {id(fake): name for fake, name in zip(trace.graph.fakes, names, strict=True)}
    for key, node in trace.notes.consumed.items():
        if key in fakes:
            trace.grads[fakes[key]] = node.name


def _phases(graph: StepGraph) -> dict[str, str]:
    phases: dict[str, str] = {}
    late: set[Node] = set()
    for node in graph.gm.graph.nodes:
        if node.op == "placeholder":
            phases[node.name] = "input"
            continue
        origin: Origin | None = node.meta.get(META)
        phase = origin.phase if origin is not None else "forward"
        from_late = any(source in late for source in node.all_input_nodes)
        if phase == "forward" and from_late:
            phase = "after"
        if phase != "forward":
            late.add(node)
        phases[node.name] = phase
    return phases
