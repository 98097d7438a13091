"""Collectives and operators of the own coordinate: each inferred kind holds on simulated ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from lockstep import _compat
from lockstep.checker.inference.flow import Flow, Graphs
from lockstep.checker.inference.kinds import EQUAL, PARTIAL, VARYING, ZERO, Kind, shard
from lockstep.checker.simulation.arithmetic import COLLECTIVES, LOCAL
from lockstep.spmd import ops as own  # noqa: F401  registers the operators
from lockstep.spmd import point_to_point as messages
from tests.rule_numbers import F64, RANKS, Value, holds, parts

MEAN = replace(PARTIAL, power=1)


def value(kind: Kind, *shape: int) -> Value:
    return parts(torch.randn(shape or (4, 4), dtype=F64), kind)


def run(name: str, x: Value, *rest: object, axis: str = "tp", phase: str = "forward"):
    """Type one collective, and do it on the ranks; gives the kind, the faults and the results."""
    space, _, op = name.partition(".")
    target = getattr(getattr(torch.ops, space), op).default
    graph = Graph()
    source = graph.placeholder("x")
    source.meta["val"] = x.locals[0]
    waits = name.endswith("wait_tensor")
    node = graph.call_function(target, (source,) if waits else (source, *rest, axis))
    members = [(t, *rest, axis) for t in x.locals]
    if waits:
        made = x.locals
    elif name in COLLECTIVES:
        made = COLLECTIVES[name](members)
    else:
        made = [LOCAL[name](r, t, *rest) for r, t in enumerate(x.locals)]
    node.meta["val"] = made[0]
    GraphModule(torch.nn.Module(), graph)
    nodes: list[Node] = list(graph.nodes)
    inputs, phases = {source: x.kind}, dict.fromkeys(nodes, phase)
    flow = Flow(Graphs("tp", [nodes] * RANKS, inputs=inputs, phases=phases)).run()
    return flow.kinds[node], [fault.code for fault in flow.faults], made


REDUCE = "_c10d_functional.all_reduce"
GATHER = ("_c10d_functional.all_gather_into_tensor", RANKS)
SCATTER = "_c10d_functional.reduce_scatter_tensor"
EXCHANGE = ("_c10d_functional.all_to_all_single", [2, 2], [2, 2])

ADMITTED = [
    ((REDUCE, "sum"), PARTIAL, EQUAL),
    ((REDUCE, "avg"), MEAN, EQUAL),
    ((REDUCE, "sum"), MEAN, replace(EQUAL, power=1)),
    ((REDUCE, "max"), VARYING, EQUAL),
    ((REDUCE, "avg"), EQUAL, EQUAL),
    (GATHER, shard(0), EQUAL),
    ((SCATTER, "sum", RANKS), PARTIAL, shard(0)),
    ((SCATTER, "avg", RANKS), MEAN, shard(0)),
    (("lockstep.own_slice", 1, [2, 2]), EQUAL, shard(1)),
    (("lockstep.own_pad", 0, [2, 2]), shard(0), PARTIAL),
    (("lockstep.keep_on", 1), EQUAL, PARTIAL),
    (("lockstep.keep_on", 1), ZERO, PARTIAL),
    (("lockstep.own_trim", 0, [2, 2]), shard(0), shard(0)),
    (("_c10d_functional.wait_tensor",), shard(1), shard(1)),
    (("_c10d_functional.broadcast", 0), VARYING, EQUAL),
    (EXCHANGE, VARYING, VARYING),
]
MESSAGES = ("lockstep.send", "lockstep.recv", "lockstep.settle")
HELD = {call[0] for call, *_ in ADMITTED} | {*MESSAGES}  # the rules that have a case here


@pytest.mark.parametrize(("call", "kind", "want"), ADMITTED)
def test_what_is_admitted_holds_in_numbers(call, kind, want) -> None:
    x = value(EQUAL if kind is ZERO else kind)
    found, faults, made = run(call[0], x, *call[1:])
    assert (found.tag, found.dim, found.power, faults) == (want.tag, want.dim, want.power, [])
    if found.tag == "E" and found.power:  # the sum of what is meant as a mean
        made = [t / 1 for t in made]
    assert holds(found, made, x.whole)


REFUSED = [
    ((REDUCE, "sum"), EQUAL, "LS505"),
    ((REDUCE, "sum"), shard(0), "LS507"),
    ((REDUCE, "max"), PARTIAL, "LS502"),
    (GATHER, PARTIAL, "LS507"),
    ((SCATTER, "sum", RANKS), EQUAL, "LS505"),
    (EXCHANGE, PARTIAL, "LS507"),
    (("_c10d_functional.broadcast", 0), PARTIAL, "LS507"),
    (("lockstep.own_slice", 0, [2, 2]), PARTIAL, "LS508"),
]


@pytest.mark.parametrize(("call", "kind", "want"), REFUSED)
def test_what_is_refused(call, kind, want) -> None:
    assert run(call[0], value(kind), *call[1:])[1] == [want]


@pytest.mark.parametrize(("call", "kind", "want"), [*ADMITTED, *REFUSED])
def test_another_axis_leaves_a_kind_alone(call, kind, want) -> None:
    if call[0].endswith(("all_to_all_single", "own_slice", "own_pad")) or kind is ZERO:
        return
    found, faults, _ = run(call[0], value(kind), *call[1:], axis="dp")
    scattered = call[0] == SCATTER and kind == shard(0)
    kept = call[0] == "lockstep.keep_on" or call[:2] == (REDUCE, "max") or scattered
    assert faults == ([] if (call, kind) != ((REDUCE, "max"), PARTIAL) else ["LS502"])
    assert kept or found.tag == kind.tag


def test_a_message_is_what_the_other_program_made_of_it() -> None:
    graph = Graph()
    source = graph.placeholder("x")
    source.meta["val"] = torch.zeros(4, 4)
    sent = graph.call_function(messages.SEND, (source, None, "pp", 1, 0))
    got = graph.call_function(messages.RECV, (source, sent, "pp", -1, 0))
    done = graph.call_function(messages.SETTLE, (source, got))
    for node in (sent, got, done):
        node.meta["val"] = torch.zeros(4, 4)
    GraphModule(torch.nn.Module(), graph)
    nodes = list(graph.nodes)
    phases = dict.fromkeys(nodes, "forward")
    flow = Flow(Graphs("tp", [nodes] * RANKS, inputs={source: shard(1)}, phases=phases)).run()
    assert [flow.kinds[node].tag for node in (sent, got, done)] == ["?", "?", "S"]
    assert flow.faults == [] and not flow.unknown


def test_flat_and_integer_values_may_be_counted() -> None:
    ones = Value(replace(EQUAL, flat=True), [torch.ones(4, 4)] * RANKS, torch.ones(4, 4))
    assert run(REDUCE, ones, "sum")[1] == []
    counts = Value(EQUAL, [torch.ones(4, dtype=torch.int64)] * RANKS, None)
    assert run(REDUCE, counts, "sum")[1] == []


def test_rows_looked_up_without_a_mask_are_no_terms_of_a_sum() -> None:
    rows = value(VARYING)
    rows.kind = replace(VARYING, note="lookup")
    assert run(REDUCE, rows, "sum")[1] == ["LS509"]
    assert run(REDUCE, value(VARYING), "sum")[1] == []


def test_two_exchanges_bring_rows_back() -> None:
    first, _, _ = run(EXCHANGE[0], value(VARYING), *EXCHANGE[1:])
    assert first.note == "moved"
    moved = value(VARYING)
    moved.kind = first
    assert run(EXCHANGE[0], moved, *EXCHANGE[1:])[0].note == ""


def test_gathers_over_another_axis_put_a_shard_inside_its_dimension() -> None:
    found, _, _ = run(GATHER[0], value(shard(0), 8, 4), RANKS, axis="dp")
    assert (found.dim, found.before) == (0, RANKS)


def test_every_functional_collective_of_a_capture_has_a_rule() -> None:
    from lockstep.checker.inference.rules import find

    assert all(find(name.removesuffix("_")) for name in COLLECTIVES)
    assert all(find(name) for name in LOCAL)
    assert find("_c10d_functional.wait_tensor")
    assert _compat.schema_or_none(torch.ops.aten.add.Tensor) is not None
