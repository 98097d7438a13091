"""Typed collectives: each row's forward and backward against autograd over simulated ranks."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep import I, P, R, S, V
from lockstep.build.artifact import pack
from lockstep.build.backends import lower
from lockstep.capture.capture import capture
from lockstep.errors import UsageError
from lockstep.spmd import calls, transitions
from lockstep.spmd.calls import Started
from lockstep.spmd.transitions import TABLE
from tests.sources import ROOT
from tests.threads import World
from tests.typed_cases import ROWS, UNEVEN, Case

COMMUNICATE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(2, monkeypatch)


def judge(case: Case, world: World, change: Any = None, **more: Any) -> tuple[bool, bool]:
    """Return whether a row's outputs, and its gradients, are what they must be."""
    xs = case.inputs(world.ranks)
    wanted = case.world(xs)
    gs = case.cotangents(wanted)

    def rank(r: int) -> Any:
        x = xs[r].clone().requires_grad_()
        y = case.call(x, "tp", r, world.ranks, **more)
        y = y.wait() if isinstance(y, Started) else y
        return y.detach(), torch.autograd.grad(y, x, gs[r] if change is None else change(gs[r]))[0]

    ys, grads = zip(*world.run(rank), strict=True)
    forward = all(map(torch.equal, ys, wanted))
    return forward, case.holds(list(grads), case.gold(xs, gs))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("case", ROWS + UNEVEN, ids=lambda case: case.name)
def test_every_row_gives_what_autograd_over_all_ranks_gives(
    case: Case, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge(case, World(ranks, monkeypatch)) == (True, True)


def test_the_cases_are_the_whole_table() -> None:
    reductions = {("all_reduce", "V", "R"), ("all_reduce", "V", "I")}  # max and min: no gradient
    rows = {(verb, *kinds) for verb, table in TABLE.items() for kinds in table}
    assert {(c.verb, c.src.kind, c.dst.kind) for c in ROWS} == rows - reductions


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast", "convert"])
@pytest.mark.parametrize("index", range(3))
def test_a_backward_of_another_row_is_seen(
    name: str, index: int, two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: with the backward of the row with the other destination, gradients are wrong."""
    cases = [c for c in ROWS if c.verb == name and c.dst.kind in "RI" and c.src.kind in "PVSI"]
    case = cases[index % len(cases)]
    kinds = case.src.kind, case.dst.kind
    forward, _ = TABLE[name][kinds]
    backward = {
        "all_reduce": {"R": transitions._nothing, "I": transitions._reduce},
        "all_gather": {"R": transitions._slice_src, "I": transitions._scatter_src},
        "broadcast": {"R": transitions._keep, "I": transitions._reduce_to},
        "convert": {"R": transitions._nothing},
    }[name][case.dst.kind]
    monkeypatch.setitem(TABLE[name], kinds, (forward, backward))
    monkeypatch.setattr(calls, "_made", {})
    assert judge(case, two) == (True, False)


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
def test_a_gradient_of_a_gradient_is_the_forward_again(case: Case, two: World) -> None:
    xs = case.inputs(2)
    gs = case.cotangents(case.world(xs))

    def rank(r: int) -> bool:
        x, g = xs[r].clone().requires_grad_(), gs[r].clone().requires_grad_()
        y = case.call(x, "tp", r, 2)
        (grad,) = torch.autograd.grad(y, x, g, create_graph=True)
        (again,) = torch.autograd.grad(grad, g, xs[r])
        return torch.equal(again, y)

    assert two.run(rank) == [True, True]


@pytest.mark.parametrize("how", ["transposed", "expanded"])
@pytest.mark.parametrize(
    "case", [c for c in ROWS if len(c.inputs(2)[0].shape) == 2], ids=lambda case: case.name
)
def test_gradients_of_any_layout_are_taken(case: Case, how: str, two: World) -> None:
    def transposed(g: torch.Tensor) -> torch.Tensor:
        return g.t().contiguous().t()

    def expanded(g: torch.Tensor) -> torch.Tensor:
        return g[:1].expand(g.shape)

    if how == "transposed":
        assert judge(case, two, transposed) == (True, True)
        return
    firsts = Case.cotangents(case, case.world(case.inputs(2)))
    xs, gs = case.inputs(2), [expanded(g) for g in firsts]

    def rank(r: int) -> Any:
        x = xs[r].clone().requires_grad_()
        return torch.autograd.grad(case.call(x, "tp", r, 2), x, gs[r])[0]

    assert case.holds(two.run(rank), case.gold(xs, [g.contiguous() for g in gs]))


@pytest.mark.parametrize(
    "case", [c for c in ROWS + UNEVEN if c.verb in COMMUNICATE], ids=lambda case: case.name
)
def test_started_and_waited_for_is_the_same(case: Case, two: World) -> None:
    assert judge(case, two, async_op=True) == (True, True)


def test_a_second_wait_gives_the_same_tensor(two: World) -> None:
    def rank(r: int) -> bool:
        started = ls.all_reduce(torch.ones(2), "tp", src=P, dst=R, async_op=True)
        return started.wait() is started.wait()

    assert two.run(rank) == [True, True]


@pytest.mark.parametrize("dst", [R, I])
def test_max_and_min_take_what_needs_no_gradient(dst: Any, two: World) -> None:
    def rank(r: int) -> list[float]:
        x = torch.tensor([float(r), -float(r)])
        return [ls.all_reduce(x, "tp", src=V, dst=dst, op=op).tolist() for op in ("max", "min")]

    assert two.run(rank) == [[[1, 0], [0, -1]]] * 2


def test_results_are_no_aliases_of_what_came_in(two: World) -> None:
    def rank(r: int) -> list[float]:
        x = torch.ones(2, 2)
        ls.convert(x, "tp", src=R, dst=S(0)).zero_()
        ls.convert(x, "tp", src=R, dst=P).zero_()
        return x.flatten().tolist()

    assert two.run(rank) == [[1.0] * 4] * 2


LOAD = """
import sys
import torch
import lockstep as ls
from lockstep.build.artifact import Artifact
from lockstep.run.loader import load_program
call = load_program(Artifact.from_bytes(sys.stdin.buffer.read()))
ls.mesh("cpu", tp=-1)
print(call([torch.arange(4.0)])[0].tolist())
assert "lockstep.spmd.typed_collectives" not in sys.modules
"""


@pytest.mark.parametrize("backend", ["graph", "inductor"])
def test_a_fresh_process_loads_a_program_that_asks_for_the_coordinate(backend: str) -> None:
    ls.mesh("cpu", tp=-1)
    graph = capture(lambda x: ls.convert(x, "tp", src=R, dst=S(0)) * 2, torch.zeros(4))
    program = lower(graph, backend)
    assert program.requires["ops"] == ["lockstep::own_slice"]
    command = [sys.executable, "-c", LOAD]
    data = pack({}, program).to_bytes()
    done = subprocess.run(command, input=data, capture_output=True, cwd=ROOT, timeout=120)
    assert done.stdout.decode() == "[0.0, 2.0, 4.0, 6.0]\n", done.stderr.decode()


X = torch.ones(4, 6, requires_grad=True)
EXPERT = "is almost always a mistake"
REFUSED = [
    (lambda: ls.convert(X, "tp", src=R, dst=I), EXPERT, 'all_reduce(y, "tp", src=P, dst=I)'),
    (lambda: ls.reinterpret(X, "tp", src=R, dst=P), EXPERT, 'convert(x, "tp", src=R, dst=P)'),
    (
        lambda: ls.reinterpret(X, "tp", src=I, dst=R, expert=True),
        "reinterpret on tp from I to R",
        'convert(x, "tp", src=I, dst=R)',
    ),
    (
        lambda: ls.reinterpret(X, "tp", src=V, dst=I),
        "reinterpret on tp from V to I",
        "dst=I in the collective that makes the value",
    ),
    (
        lambda: ls.all_reduce(X, "tp", src=V, dst=R, op="max"),
        "max over tp of a tensor that needs a gradient",
        'all_reduce(x.detach(), "tp", src=V, dst=R, op="max")',
    ),
    (
        lambda: ls.all_reduce(X.detach(), "tp", src=P, dst=R, op="max"),
        "all_reduce on tp: the max of P",
        'all_reduce(x, "tp", src=V, dst=..., op="max")',
    ),
    (
        lambda: ls.all_reduce(X, "tp", src=V, dst=R),
        "all_reduce on tp: the sum of V",
        'reinterpret(x, "tp", src=V, dst=P) where the V is made',
    ),
    (
        lambda: ls.all_reduce(X, "tp", src=P("mean"), dst=R, op="sum"),
        "all_reduce on tp: the sum of a pending mean",
        'op="avg"',
    ),
    (
        lambda: ls.all_reduce(X, "tp", src=P, dst=R, op="median"),
        "all_reduce on tp: op='median'",
        "one of sum, avg, max, min",
    ),
    (
        lambda: ls.all_reduce(X, "tp", src=I, dst=R),
        "all_reduce on tp does not go from I to R",
        "there is nothing to reduce",
    ),
    (
        lambda: ls.all_gather(X, "tp", src=P, dst=R),
        "all_gather on tp does not go from P to R",
        'all_reduce(x, "tp", src=P, dst=R)',
    ),
    (
        lambda: ls.convert(X, "tp", src=P, dst=S(0)),
        "convert on tp does not go from P to S(0)",
        'reduce_scatter(x, "tp", src=P, dst=S(0))',
    ),
    (
        lambda: ls.convert(X, "tp", src=S(0), dst=R),
        "convert on tp does not go from S(0) to R",
        'all_gather(x, "tp", src=S(0), dst=R)',
    ),
    (
        lambda: ls.convert(X, "tp", src=R, dst=R),
        "convert on tp does not go from R to R",
        "leave it out: the value has this type already",
    ),
    (
        lambda: ls.convert(X, "tp", src=R, dst=P("mean")),
        "convert on tp gives P, a pending sum",
        "dst=P",
    ),
    (
        lambda: ls.all_to_all(X, "tp", src=S(1), dst=S(1)),
        "all_to_all on tp does not go from S(1) to S(1)",
        "leave it out",
    ),
    (
        lambda: ls.convert(X, "tp", src=R, dst=S(2)),
        "convert on tp: dimension 2 of a tensor of shape [4, 6]",
        "",
    ),
    (
        lambda: ls.all_gather(X.sum(), "tp", src=V, dst=R),
        "all_gather on tp: dimension 0 of a tensor of shape []",
        "unsqueeze(0) it first",
    ),
    (
        lambda: ls.convert(X, "tp", src=R, dst=S(0), sizes=[1, 2]),
        "convert on tp: sizes [1, 2] of a dimension of 4",
        "sizes that add up to 4",
    ),
    (
        lambda: ls.convert(X, "tp", src=R, dst=S(0), sizes=[4]),
        "convert on tp: sizes [4]",
        "2 sizes, one a rank",
    ),
    (
        lambda: ls.all_gather(X, "tp", src=S(0), dst=R, sizes=[3, 5]),
        "all_gather on tp: this rank holds 4 of a dimension shared out as [3, 5]",
        "3, at coordinate 0",
    ),
    (
        lambda: ls.all_to_all(X[:3], "tp", src=V, dst=V),
        "all_to_all on tp: 3 rows do not share out evenly over 2 ranks",
        "input_splits=[...], output_splits=[...]",
    ),
    (
        lambda: ls.all_to_all(X, "tp", src=V, dst=V, input_splits=[1, 3]),
        "all_to_all on tp: one of input_splits and output_splits",
        "both, as lists",
    ),
    (
        lambda: ls.broadcast(X, "tp", src=V, dst=R, root=2),
        "broadcast on tp: root=2",
        "a coordinate from 0 to 1",
    ),
    (lambda: ls.convert(X, "tp", src=R, dst=S), "convert on tp, dst: S needs its dim", "S(0) for"),
    (lambda: ls.convert(X, "tp", src="R", dst=V), "convert on tp, src: 'R' is no type", "R, I, V"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "what", "instead"), REFUSED)
def test_what_is_meant_is_said(call: Any, what: str, instead: str, two: World) -> None:
    def rank(r: int) -> str:
        if r == 0:
            with pytest.raises(UsageError) as caught:
                call()
            return str(caught.value)
        return ""

    text = two.run(rank)[0]
    assert what in text and instead in text


def test_every_transition_outside_the_table_is_refused_with_advice(two: World) -> None:
    """All pairs of types: what the table lacks says what it holds, and what to write instead."""
    two.here.rank = 0
    types = [R, I, V, P, P("mean"), S(0), S(1)]
    silent = []
    for verb in TABLE:
        for src in types:
            for dst in types:
                if (src.kind, dst.kind) in TABLE[verb]:
                    continue
                with pytest.raises(UsageError) as caught:
                    getattr(ls, verb)(X.detach(), "tp", src=src, dst=dst)
                if not caught.value.fixes:
                    silent.append(f"{verb} {src.kind}->{dst.kind}")
    assert sorted(set(silent)) == []


def test_an_unknown_axis_is_told_with_those_that_exist() -> None:
    ls.mesh("cpu", dp=-1)
    with pytest.raises(UsageError) as caught:
        ls.convert(X, "tq", src=I, dst=R)
    assert caught.value.what == "there is no mesh axis tq"
    assert "'dp'" in str(caught.value.want)
