"""Passes over a captured graph: what they do, that they keep every bit, and that a wrong one is
left out by its name."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls
from lockstep import _compat
from lockstep.build.outline.nodes import calls
from lockstep.build.passes import apply, bucket, share
from lockstep.build.passes.apply import Pass, Setting, applied
from lockstep.build.passes.asked import asked_for
from lockstep.build.passes.collectives import is_start, is_wait, kind
from lockstep.build.passes.order import is_light
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture, capture_call
from lockstep.capture.checking import Checking
from lockstep.capture.state import collect
from lockstep.checker.world import simulated_rank
from lockstep.errors import UsageError
from lockstep.run.judged import fault_in
from lockstep.run.options import Options, options

BOTH = asked_for(None, "inductor")


class Deep(nn.Module):
    """Layers, so that gradients come one after another."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss = ls.loss(model(x).mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss.detach()


def by_hand(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x).mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2
    return loss.detach()


def graph_of(step: Any = train, *inputs: Any) -> Any:
    ls.mesh("cpu", dp=1)
    return capture(step, *(inputs or (Deep(), torch.randn(4, 8))))


def setting(graph: Any, size: int = 2) -> Setting:
    return Setting(graph.fake_mode, {"dp": size, "world": size})


def kinds(gm: Any) -> list[str]:
    return [kind(node) for node in calls(gm.graph) if kind(node)]


def shape_of(gm: Any) -> str:
    """A letter a call: S starts a collective, W waits for one, x costs something."""
    letters = []
    for node in calls(gm.graph):
        letters += ["S"] * is_start(node) or ["W"] * is_wait(node) or ["x"] * (not is_light(node))
    return "".join(letters)


def values_of(gm: Any, graph: Any) -> list[Tensor]:
    torch.manual_seed(1)
    inputs = [torch.randn(fake.shape) for fake in graph.fakes]
    return [*gm(*inputs), *inputs]


@pytest.mark.parametrize("step", [train, by_hand])
def test_gradients_go_together_and_start_while_the_backward_runs(step: Any) -> None:
    graph = graph_of(step)
    made, told = applied(graph.gm, BOTH, setting(graph))
    assert kinds(graph.gm).count("all_reduce") == 12
    assert told == {"bucket": 12, "overlap": 5}
    before, after = shape_of(graph.gm), shape_of(made)
    assert "x" not in before[before.index("S") :]  # all are reduced after the backward
    assert after.count("S") == after.count("W") == 6
    assert after.endswith("WWWWWW") and "x" in after[after.index("S") : after.rindex("S")]


@pytest.mark.parametrize("step", [train, by_hand])
def test_results_are_equal_to_the_bit(step: Any) -> None:
    graph = graph_of(step)
    made, _ = applied(graph.gm, BOTH, setting(graph))
    assert all(map(torch.equal, values_of(graph.gm, graph), values_of(made, graph)))


def test_sums_over_more_than_two_ranks_stay_apart_unless_asked() -> None:
    graph = graph_of()
    _, told = applied(graph.gm, BOTH, setting(graph, 4))
    assert "bucket" not in told and told["overlap"] == 11
    _, told = applied(graph.gm, {"bucket_wide": 1 << 20}, setting(graph, 4))
    assert told == {"bucket_wide": 12}


def test_a_limit_of_bytes_bounds_a_bucket_and_what_is_under_way() -> None:
    graph = graph_of()
    assert applied(graph.gm, {"bucket": 200}, setting(graph))[1] == {}  # of two, 288 bytes
    made, _ = applied(graph.gm, {"bucket": 300}, setting(graph))
    assert kinds(made).count("all_reduce") == 6
    free, _ = applied(graph.gm, {"overlap": 1 << 20}, setting(graph))
    tight, _ = applied(graph.gm, {"overlap": 300}, setting(graph))
    assert "xSx" in shape_of(free)[: shape_of(tight).index("S")]
    assert shape_of(tight).count("xS") < shape_of(free).count("xS")


def gathers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Gathers and scatters of two shapes."""
    ops = _compat.functional_collectives()
    wide = [ops.all_gather_into_tensor(one, 2, "dp") for one in (x, y)]
    own = [ops.reduce_scatter_tensor(one, "sum", 2, "dp") for one in (x, y)]
    return tuple(ops.wait_tensor(one) for one in (*wide, *own))


def test_gathers_go_together_over_any_number_of_ranks_and_scatters_over_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = graph_of(gathers, torch.randn(4, 3), torch.randn(2, 5))
    monkeypatch.setattr(bucket, "SHARE", 1)
    two, told = applied(graph.gm, {"bucket": 1 << 20}, setting(graph))
    assert (told, len(kinds(two))) == ({"bucket": 4}, 4)
    three, told = applied(graph.gm, {"bucket": 1 << 20}, setting(graph, 3))
    assert (told, len(kinds(three))) == ({"bucket": 2}, 6)


def twice(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What is one: a product of two. What is not: draws, results, what is written in between."""
    once = (x @ y).sin() + (x @ y).sin()
    drawn = torch.rand_like(x) + torch.rand_like(x)
    before = x.exp() + 1
    x[0].add_(1)
    return once, drawn, before + x.exp(), y.cos(), y.cos()


def test_what_is_computed_twice_is_computed_once() -> None:
    graph = graph_of(twice, torch.randn(4, 4), torch.randn(4, 4))
    made, told = applied(graph.gm, asked_for({"share": True}, "graph"), setting(graph, 1))
    assert told == {"share": 2}
    targets = [str(node.target).split(".")[1] for node in calls(made.graph)]
    assert [targets.count(name) for name in ("mm", "sin", "rand_like", "exp", "cos")] == [
        1,
        1,
        2,
        2,
        2,
    ]
    assert all(map(torch.equal, values_of(graph.gm, graph), values_of(made, graph)))


def test_sharing_that_overlooks_a_write_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(twice, torch.randn(4, 4), torch.randn(4, 4))
    monkeypatch.setattr(share, "written", lambda node: [])
    _, told = applied(graph.gm, {"share": 1}, setting(graph, 1))
    assert told == {"share": "left out: it was not proved to keep every bit"}


# ---- what a wrong pass meets -------------------------------------------------------------------


def wrong(change: Any) -> Pass:
    return Pass(lambda graph, job, most: change(graph) or 1)


def unreduced(graph: Any) -> None:
    """Take what a rank has alone for the sum: a partial for a replicate."""
    for node in calls(graph):
        if is_wait(node):
            node.replace_all_uses_with(node.args[0].args[0])


def unordered(graph: Any) -> None:
    """Swap what two waits give."""
    one, other = [node for node in calls(graph) if is_wait(node)][:2]
    one.args, other.args = other.args, one.args


def test_a_wrong_pass_is_left_out_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of()
    for change in (unreduced, unordered):
        monkeypatch.setitem(apply.PASSES, "overlap", wrong(change))
        made, told = applied(graph.gm, {"overlap": 1}, setting(graph))
        assert told == {"overlap": "left out: it was not proved to keep every bit"}
        assert made is graph.gm


def test_a_pass_that_takes_a_partial_for_a_replicate_is_rejected_by_the_types(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply, "equal", lambda *_: True)
    with simulated_rank(0, {"dp": 2}) as mesh:
        checking = Checking(ships=True)
        taken = Step(train)
        call = taken.call((Deep(), torch.randn(4, 8)), {})
        state = collect(call)
        graph = capture_call(taken, call, state, checking)
        options = Options(mesh=mesh, data=("dp",))
        bound: Any = SimpleNamespace(state=state)

        def faults(gm: Any) -> str:
            return fault_in(gm, checking, bound, options, {})

        assert applied(graph.gm, BOTH, setting(graph), faults)[1] == {"bucket": 12, "overlap": 5}
        monkeypatch.setitem(apply.PASSES, "overlap", wrong(unreduced))
        made, told = applied(graph.gm, BOTH, setting(graph), faults)
    assert told["bucket"] == 12
    assert "left out: LS514" in told["overlap"] and "is still partial on dp" in told["overlap"]
    assert kinds(made).count("wait_tensor") == 6


# ---- how they are asked for ----------------------------------------------------------------------


def test_passes_are_on_by_themselves_for_the_compiler_alone_and_off_by_name() -> None:
    assert asked_for(None, "inductor") == {"update": 1, "bucket": 25 << 20, "overlap": 256 << 20}
    assert asked_for(None, "graph") == {}
    assert asked_for({"bucket": False}, "inductor") == {"update": 1, "overlap": 256 << 20}
    assert asked_for({"bucket_wide": True, "overlap": 7}, "graph") == {
        "bucket_wide": 25 << 20,
        "overlap": 7,
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"fuse": True}, "no pass is called 'fuse'"),
        ({"bucket": "yes"}, "passes={'bucket': 'yes'}"),
        ({"bucket": -1}, "passes={'bucket': -1}"),
        ("bucket", "passes='bucket'"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        ls.compile(passes=given)(train)


def test_roles_have_no_passes() -> None:
    mesh = ls.mesh("cpu", pp=1)
    assert options(None, **NOTHING, mesh=mesh, roles="pp", passes=None).passes == {}
    with pytest.raises(UsageError, match="passes= with roles="):
        options(None, **NOTHING, mesh=mesh, roles="pp", passes={"bucket": True})


NOTHING: dict[str, Any] = {
    **dict.fromkeys(("data", "store", "on_new_shape", "dynamic", "pending")),
    **{"backend": "inductor", "check": "types", "eager_check": "off", "guard": False},
}
