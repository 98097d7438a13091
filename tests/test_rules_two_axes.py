"""A collective over one axis, and pieces along it, leave a shard of another axis where it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from lockstep.checker.inference.flow import Flow, Graphs
from lockstep.checker.inference.kinds import EQUAL, PARTIAL, Kind, shard
from lockstep.checker.simulation.arithmetic import COLLECTIVES
from tests.rule_numbers import F64, RANKS, Value, check, holds, parts, together

OTHER = 2  # ranks of the axis that the collective is over
C = torch.ops._c10d_functional
GATHER = (C.all_gather_into_tensor, OTHER)
SCATTER = (C.reduce_scatter_tensor, "sum", OTHER)
EVEN = (C.all_to_all_single, [4, 4], [4, 4])
WHOLE = (C.all_to_all_single, [8, 8], [8, 8])
UNEVEN = (C.all_to_all_single, [2, 6], [2, 6])
REDUCE = (C.all_reduce, "sum")

# collective, the shard's place before it, and after it; None: its place is lost
MOVES: list[tuple[tuple[Any, ...], Kind, Kind | None]] = [
    (GATHER, shard(0), shard(0, OTHER)),
    (GATHER, shard(0, 2), shard(0, 2 * OTHER)),
    (GATHER, shard(1), shard(1)),
    (SCATTER, shard(0, OTHER), shard(0)),
    (SCATTER, shard(0, 2 * OTHER), shard(0, 2)),
    (SCATTER, shard(0), None),
    (SCATTER, shard(1), shard(1)),
    (EVEN, shard(0, OTHER), shard(0, OTHER)),
    (EVEN, shard(0), None),
    (WHOLE, shard(1), shard(1)),
    (UNEVEN, shard(0, OTHER), None),
    (REDUCE, shard(0, 2), shard(0, 2)),
]


def divided(whole: torch.Tensor, kind: Kind) -> list[torch.Tensor]:
    """The ranks' parts of a whole of which each of `before` blocks is cut."""
    blocks = whole.unflatten(kind.dim, (kind.before, -1))
    return [part.flatten(kind.dim, kind.dim + 1) for part in blocks.chunk(RANKS, kind.dim + 1)]


def across(call: tuple[Any, ...], members: list[torch.Tensor]) -> list[torch.Tensor]:
    """Do a collective on the ranks of the other axis."""
    name = call[0]._qualified_op_name.replace("::", ".")
    return COLLECTIVES[name]([(tensor, *call[1:], "dp") for tensor in members])


@pytest.mark.parametrize(("call", "kind", "want"), MOVES)
def test_a_shard_of_another_axis(call: Any, kind: Kind, want: Kind | None) -> None:
    wholes = [torch.randn(16, 8, dtype=F64) for _ in range(OTHER)]
    local = [divided(whole, kind) for whole in wholes]
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = local[0][0]
    node = graph.call_function(call[0].default, (x, *call[1:], "dp"))
    results = [across(call, [of[rank] for of in local]) for rank in range(RANKS)]
    node.meta["val"] = results[0][0]
    GraphModule(torch.nn.Module(), graph)
    nodes = list(graph.nodes)
    phases = dict.fromkeys(nodes, "forward")
    found = Flow(Graphs("tp", [nodes] * RANKS, inputs={x: kind}, phases=phases)).run().kinds[node]
    if want is None:
        assert found.tag == "V"
        return
    assert found == want
    expected = across(WHOLE if call == EVEN else call, wholes)  # the same blocks of the whole
    for other in range(OTHER):
        assert holds(found, [results[rank][other] for rank in range(RANKS)], expected[other])


BLOCKED = {
    "chunk": lambda x: x.chunk(2)[1],
    "split": lambda x: x.split(4)[0],
    "unbind": lambda x: x.view(2, 4, 4).unbind(0)[1],
}


@pytest.mark.parametrize("name", BLOCKED)
def test_a_block_of_a_blocked_shard(name: str) -> None:
    """Of `[2, shard]` in one dimension, each of the two pieces is a shard."""
    function: Callable[..., Any] = BLOCKED[name]
    local = [torch.randn(8, 4, dtype=F64) for _ in range(RANKS)]
    x = Value(shard(0, 2), local, None)
    (kind,) = check(function, [x])
    assert kind == shard(0)
    whole = together(shard(0, 2), local)
    assert whole is not None
    pieces = [function(part) for part in local]
    assert torch.equal(together(kind, pieces), whole.chunk(2)[0 if name == "split" else 1])  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "dim"), [(PARTIAL, 1), (PARTIAL, 2), (EQUAL, 1)])
def test_parts_that_were_cut_and_stacked_are_scattered_along_their_dimension(kind, dim) -> None:
    x = parts(torch.randn(2, 4, 6, dtype=F64), kind)
    (made,) = check(lambda t: torch.cat(t.chunk(RANKS, dim)), [x], grads=False)
    assert (made.note, made.dim, made.tag) == ("cut", dim, kind.tag)
    (other,) = check(lambda t: torch.cat(t.chunk(RANKS, dim)).view(2, -1), [x], grads=False)
    assert other.note == ""
    (turned,) = check(lambda t: torch.cat(t.chunk(RANKS, dim)[::-1]), [x], grads=False)
    assert turned.note == ""
    graph = Graph()
    source = graph.placeholder("x")
    stacked = [torch.cat(t.chunk(RANKS, dim)) for t in x.locals]
    source.meta["val"] = stacked[0]
    node = graph.call_function(SCATTER[0].default, (source, "sum", RANKS, "tp"))
    results = COLLECTIVES["_c10d_functional.reduce_scatter_tensor"](
        [(t, "sum", RANKS, "tp") for t in stacked]
    )
    node.meta["val"] = results[0]
    GraphModule(torch.nn.Module(), graph)
    nodes = list(graph.nodes)
    flow = Flow(Graphs("tp", [nodes] * RANKS, inputs={source: made}, phases={}))
    found = flow.run().kinds[node]
    assert found == shard(dim)
    total = x.whole if kind is PARTIAL else x.whole * RANKS
    assert holds(found, results, total)
