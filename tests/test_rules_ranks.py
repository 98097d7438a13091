"""What each rank does differently: picks of pieces, slices, factors, slots among zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.checker.inference.flow import Flow, Graphs
from lockstep.checker.inference.kinds import EQUAL, PARTIAL, VARYING, Kind, shard
from tests.rule_numbers import F64, RANKS, Value, holds, parts


def traced(
    function: Callable[..., Any], values: list[Value]
) -> tuple[Kind, list[str], list[torch.Tensor]]:
    """Trace `function(rank, *operands)` for each rank; its kind, the faults and the results."""
    graphs = [
        make_fx(lambda *args, r=r: function(r, *args))(*[v.locals[r] for v in values])
        for r in range(RANKS)
    ]
    nodes = [list(gm.graph.nodes) for gm in graphs]
    inputs = [n for n in nodes[0] if n.op == "placeholder"]
    kinds = {n: v.kind for n, v in zip(inputs, values, strict=True)}
    phases = dict.fromkeys(nodes[0], "forward")
    flow = Flow(Graphs("tp", nodes, inputs=kinds, phases=phases)).run()
    results = [function(r, *[v.locals[r] for v in values]) for r in range(RANKS)]
    out = nodes[0][-1].args[0]
    return flow.kinds[out], [fault.code for fault in flow.faults], results


def value(kind: Kind, *shape: int) -> Value:
    return parts(torch.randn(shape or (4, 4), dtype=F64), kind)


OWN = {
    "chunk": lambda r, x: x.chunk(2)[r] * 1,
    "chunk 1": lambda r, x: x.chunk(2, 1)[r] * 2,
    "split": lambda r, x: x.split(2)[r].clone(),
    "slice": lambda r, x: x[2 * r : 2 * r + 2],
    "narrow": lambda r, x: x.narrow(1, 2 * r, 2),
}


@pytest.mark.parametrize("name", OWN)
def test_an_own_part_of_what_is_equal_is_its_shard(name) -> None:
    x = value(EQUAL)
    kind, faults, made = traced(OWN[name], [x])
    assert (kind.tag, faults) == ("S", [])
    assert holds(kind, made, x.whole * (2 if name == "chunk 1" else 1))


@pytest.mark.parametrize("name", OWN)
def test_an_own_part_of_a_partial_is_told(name) -> None:
    assert traced(OWN[name], [value(PARTIAL)])[1] == ["LS508"]


@pytest.mark.parametrize("name", OWN)
def test_an_own_part_of_a_varying_value_varies(name) -> None:
    kind, faults, _ = traced(OWN[name], [value(VARYING)])
    assert (kind.tag, faults) == ("V", [])


def test_the_same_part_on_every_rank_is_equal() -> None:
    assert traced(lambda r, x: x.chunk(2)[1].contiguous(), [value(EQUAL)])[:2] == (EQUAL, [])


def test_parts_in_another_order_than_the_ranks_are_no_shard() -> None:
    assert traced(lambda r, x: x[2 - 2 * r : 4 - 2 * r], [value(EQUAL)])[0].tag == "V"


def slot(r, x):
    zeros = [torch.zeros_like(x) for _ in range(RANKS)]
    zeros[r] = x
    return torch.cat(zeros)


def written(r, x):
    whole = torch.zeros(4, 4, dtype=F64)
    whole[2 * r : 2 * r + 2] = x
    return whole * 1


@pytest.mark.parametrize("function", [slot, written])
def test_an_own_slot_among_zeros_is_a_partial(function) -> None:
    x = value(shard(0))
    kind, faults, made = traced(function, [x])
    assert (kind.tag, faults) == ("P", [])
    assert holds(kind, made, x.whole)


def test_a_factor_of_one_on_one_rank_keeps_the_value_there() -> None:
    x = value(EQUAL)
    kind, faults, made = traced(lambda r, x: x * (1.0 if r == 0 else 0.0), [x])
    assert (kind.tag, faults) == ("P", [])
    assert holds(kind, made, x.whole)
    assert traced(lambda r, x: x * (r + 1), [x])[0].tag == "V"


def test_a_number_of_the_rank_makes_a_value_vary() -> None:
    assert traced(lambda r, x: x + r, [value(EQUAL)])[0] == VARYING
    assert traced(lambda r, x: (x > r) & (x < 9), [value(EQUAL)])[0].note == "mask"


def test_an_operator_without_a_rule_is_counted_and_no_error() -> None:
    gm = make_fx(lambda x: torch.linalg.slogdet(x)[1].cosh())(torch.eye(4))
    nodes = list(gm.graph.nodes)
    for kind, want in ((PARTIAL, "?"), (EQUAL, "E")):
        phases = dict.fromkeys(nodes, "forward")
        flow = Flow(Graphs("tp", [nodes] * 2, inputs={nodes[0]: kind}, phases=phases)).run()
        assert dict(flow.unknown) == {"_linalg_slogdet": 1}
        assert (flow.kinds[nodes[-1].args[0]].tag, flow.faults) == (want, [])
