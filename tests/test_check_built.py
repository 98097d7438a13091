"""What types are sure of in the very graph that is shipped, and that it stays the same graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_aggregate

import lockstep as ls
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.checking import Checking
from lockstep.capture.graph import StepGraph
from lockstep.capture.state import collect
from lockstep.checker.built import Built, judge_built
from lockstep.checker.world import simulated_rank

R, S, I = ls.R, ls.S, ls.I


class Net(nn.Module):
    """Two projections; dropout and a frozen scale between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(4, 8), nn.Linear(8, 4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.drop(F.gelu(self.up(x))))


def captured(step: Any, *args: Any, checking: Checking | None = None) -> tuple[StepGraph, Any]:
    taken = Step(step)
    call = taken.call(args, {})
    state = collect(call)
    return capture_call(taken, call, state, checking), state


def judged(
    step: Callable[..., Any],
    *args: Any,
    mesh: dict[str, int] | None = None,
    declared: dict[str, Any] | None = None,
    **options: Any,
) -> Built:
    """Judge the program of a step on the first of some simulated ranks."""
    with simulated_rank(0, mesh or {"dp": 2}) as made:
        if declared:
            ls.type_parameters(args[0], declared)
        checking = Checking(ships=True)
        _, state = captured(step, *args, checking=checking)
        return judge_built(checking, state, made, **options)


def codes(built: Built) -> list[str]:
    return [finding.code for finding in built.report.findings]


# ---- along a data axis ---------------------------------------------------------------------------


def data_parallel(after: str = "", before: str = "", loss: str = "mean") -> Callable[..., Any]:
    """A data-parallel step of three parts that differ from case to case."""

    def step(model: Net, x: Tensor) -> Tensor:
        if before == "count":
            count = torch.full((), x.shape[0], dtype=x.dtype)
            dist.all_reduce(count)
            value = ls.loss(model(x).square().sum() / count, dp="sum")
        elif before == "features":
            own = model(x)
            parts = ls.all_gather(own, "dp", src=S(0), dst=R)
            value = ls.loss((own @ parts.t()).mean(), dp="mean")
        elif before == "gathered batch":
            value = ls.loss(model(ls.all_gather(x, "dp", src=S(0), dst=R)).mean(), dp="mean")
        else:
            value = model(x).square().mean()
            value = ls.loss(value, dp="mean") if loss == "mean" else value
        value.backward()
        if after == "reduced":
            ls.reduce_grads(model, dp="mean")
        elif after == "raw":
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        elif after == "bucket":
            flat = torch.cat([p.grad.flatten() for p in model.parameters()])
            dist.all_reduce(flat)
            sizes = [p.numel() for p in model.parameters()]
            for p, part in zip(model.parameters(), flat.split(sizes), strict=True):
                p.grad.copy_(part.view_as(p) / dist.get_world_size())
        elif after == "averaged parameters":
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    dist.all_reduce(p)
                    p /= dist.get_world_size()
        elif after == "one left":
            ls.reduce_grads(model.up, dp="mean")
        elif after == "logged":
            shown = value.detach().clone()
            dist.all_reduce(shown)
            return shown
        return value

    return step


X = torch.randn(3, 4)


@pytest.mark.parametrize("after", ["reduced", "raw", "bucket", "averaged parameters"])
def test_a_reduction_of_any_form_is_let_pass(after: str) -> None:
    assert codes(judged(data_parallel(after), Net(), X, data=("dp",))) == []


@pytest.mark.parametrize("before", ["features", "gathered batch"])
def test_what_ranks_share_in_the_forward_is_not_judged(before: str) -> None:
    assert codes(judged(data_parallel(before=before), Net(), X, data=("dp",))) == []


@pytest.mark.parametrize(("after", "before"), [("", ""), ("logged", ""), ("", "count")])
def test_a_forgotten_reduction_is_found_at_its_backward(after: str, before: str) -> None:
    (finding,) = judged(data_parallel(after, before), Net(), X, data=("dp",)).report.findings
    assert finding.code == "LS514" and finding.axis == "dp"
    assert finding.what.startswith("model.up.weight.grad is still partial on dp")
    assert finding.what.endswith("; 3 more of the same kind")
    assert finding.source == "value.backward()"
    way = "sum" if before else "mean"
    assert finding.fix == f'ls.reduce_grads(model, dp="{way}")   after this line'


def test_the_one_that_is_left_is_named() -> None:
    (finding,) = judged(data_parallel("one left"), Net(), X, data=("dp",)).report.findings
    assert finding.what == (
        "model.down.weight.grad is still partial on dp when the optimizer reads it; "
        "1 more of the same kind"
    )


@pytest.mark.parametrize(
    "options",
    [
        {},  # no axis is said to be one of data
        {"data": ("dp",), "pending": {"dp": "mean"}},
        {"data": ("dp",), "apart": dict.fromkeys(NAMES := [
            "model.up.weight", "model.up.bias", "model.down.weight", "model.down.bias"
        ], frozenset({"dp"}))},
        {"data": ("dp",), "declared": {"*": {"dp": ls.V}}},
    ],
)  # fmt: skip
def test_what_is_not_known_to_be_wrong_is_let_pass(options: dict[str, Any]) -> None:
    built = judged(data_parallel(), Net(), X, **options)
    assert codes(built) == []
    assert sorted(built.own.get("dp", [])) == (sorted(NAMES) if "apart" in options else [])


def test_a_loss_that_nothing_is_said_of_is_not_refused() -> None:
    assert codes(judged(data_parallel(loss="unsaid"), Net(), X, data=("dp",))) == []


def test_one_rank_has_nothing_to_reduce() -> None:
    assert codes(judged(data_parallel(), Net(), X, mesh={"dp": 1}, data=("dp",))) == []


@pytest.mark.parametrize("whole", [True, False])
def test_a_parameter_beside_gathered_ones_is_found(whole: bool) -> None:
    """What is gathered of parameters alone, as FSDP2 does, is of no rank's batch."""

    def step(model: Net, x: Tensor) -> Tensor:
        up = ls.all_gather(model.up.weight, "dp", src=S(0), dst=R)
        bias = ls.all_gather(model.up.bias, "dp", src=S(0), dst=R)
        value = ls.loss((F.linear(x, up, bias).tanh() @ model.down.weight).mean(), dp="mean")
        value.backward()
        if whole:
            dist.all_reduce(model.down.weight.grad)
        return value

    model = Net()
    model.down.weight = nn.Parameter(torch.randn(16, 4))
    found = judged(step, model, X, data=("dp",)).report.findings
    told = ["model.down.weight.grad is still partial on dp when the optimizer reads it"]
    assert [f.what for f in found if f.code == "LS514"] == (told if not whole else [])
    assert whole == (not found)


def test_replicas_are_those_whose_gradient_is_reduced() -> None:
    built = judged(data_parallel("reduced"), Net(), X, data=("dp",))
    assert sorted(built.replicas["dp"]) == sorted(NAMES)
    left = judged(data_parallel("one left"), Net(), X, data=("dp",))
    assert sorted(left.replicas["dp"]) == ["model.up.bias", "model.up.weight"]
    later = judged(data_parallel(), Net(), X, data=("dp",), pending={"dp": "mean"})
    assert sorted(later.replicas["dp"]) == sorted(NAMES)


# ---- along other axes: by what is declared -------------------------------------------------------

SHARDS = {"up.weight": {"tp": S(0)}, "up.bias": {"tp": S(0)}, "down.weight": {"tp": S(1)}}
WHOLE = {"norm": {"tp": I}, "down.bias": {"tp": I}}


class Sharded(nn.Module):
    """One rank's shards of a network, between two invariant parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(4))
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)


def tensor_parallel(fault: str = "") -> Callable[..., Any]:
    def step(model: Sharded, x: Tensor) -> Tensor:
        h = ls.typed(x, tp=I) * model.norm
        if fault != "no conversion":
            h = ls.convert(h, "tp", src=I, dst=R)
        partial = F.linear(F.gelu(model.up(h)), model.down.weight)
        if fault == "gelu of a partial":
            partial = F.gelu(partial)
        if fault == "bias before":
            partial = partial + model.down.bias
        if fault == "shares of the bias":
            partial = partial + model.down.bias / 2
        y = ls.all_reduce(partial, "tp", src=ls.P, dst=I)
        if fault in ("", "no conversion", "gelu of a partial"):
            y = y + model.down.bias
        if fault == "logged":
            F.gelu(partial.detach())
        y.square().sum().backward()
        return y

    return step


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("", []),
        ("logged", []),
        ("shares of the bias", []),
        ("no conversion", ["LS504"]),
        ("gelu of a partial", ["LS502"]),
        ("bias before", ["LS501"]),
    ],
)
def test_what_is_declared_is_held_against_the_program(fault: str, found: list[str]) -> None:
    declared = {**SHARDS, **WHOLE}
    assert codes(
        judged(tensor_parallel(fault), Sharded(), X, mesh={"tp": 2}, declared=declared)
    ) == (found)


@pytest.mark.parametrize("fault", ["no conversion", "gelu of a partial", "bias before"])
def test_without_declarations_nothing_is_refused(fault: str) -> None:
    built = judged(tensor_parallel(fault), Sharded(), X, mesh={"tp": 2})
    assert codes(built) == [] and built.unknown["tp"] > 0


# ---- the graph -----------------------------------------------------------------------------------


def rows(graph: StepGraph) -> list[tuple[str, ...]]:
    """A graph's nodes without their names."""
    numbers: dict[Node, str] = {}

    def plain(value: Any) -> Any:
        return numbers[value] if isinstance(value, Node) else str(value)

    found = []
    for node in graph.gm.graph.nodes:
        arguments = map_aggregate(node.args, plain), map_aggregate(node.kwargs, plain)
        found.append(
            (node.op, str(node.target if node.op == "call_function" else ""), str(arguments))
        )
        numbers[node] = f"%{len(numbers)}"
    return found


def with_optimizer(model: Net, optimizer: Any, x: Tensor) -> Tensor:
    loss = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def gru_step(model: nn.GRU, x: Tensor) -> Tensor:
    loss = model(x)[0].square().mean()
    loss.backward()
    return loss


class Pieces(nn.Module):
    """Adds into a tensor of zeros, made like one that wants a gradient, by parts of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weights.sum()
        y = torch.zeros_like(x)
        for number, weight in enumerate(self.weights):
            own = (torch.arange(len(x)) % 2 == number).nonzero().squeeze(-1)
            y = y.index_add(0, own, x.index_select(0, own) @ weight)
        return y


def pieces_step(model: Pieces, x: Tensor) -> Tensor:
    loss = model(x).square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("which", ["plain", "optimizer", "gru", "pieces"])
def test_notes_leave_the_graph_as_it_is(which: str) -> None:
    model = Net()
    step, args = {
        "plain": (data_parallel("reduced"), (model, X)),
        "optimizer": (with_optimizer, (model, torch.optim.AdamW(model.parameters()), X)),
        "pieces": (pieces_step, (Pieces(), torch.randn(6, 4))),
        "gru": (gru_step, (nn.GRU(3, 4, num_layers=2), torch.randn(5, 2, 3))),
    }[which]
    with simulated_rank(0, {"dp": 2}):
        plain, _ = captured(step, *args)
        checking = Checking(ships=True)
        noted, _ = captured(step, *args, checking=checking)
    assert rows(noted) == rows(plain)
    assert noted.contract() == plain.contract() and noted.schedule == plain.schedule
    assert checking.labels and checking.graph is not None
    assert len(checking.graph.gm.graph.nodes) > len(noted.gm.graph.nodes)


def test_the_shipped_graph_s_values_and_gradients_have_types_to_look_at() -> None:
    with simulated_rank(0, {"dp": 2}) as made:
        checking = Checking(ships=True)
        graph, state = captured(data_parallel("reduced"), Net(), X, checking=checking)
        built = judge_built(checking, state, made, ("dp",))
    names = [node.name for node in graph.gm.graph.nodes]
    (reduced,) = {built.types.get(n, {}).get("dp") for n in names if n.startswith("wait_tensor")}
    assert reduced == "R|I"
    gradients = {name: built.types.get(built.cotangents.get(name, ""), {}) for name in names}
    assert gradients["mean"] and built.types["mean"] == {"dp": "P(mean)"}


# ---- a stage of a pipeline -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduced", "axis", "found"),
    [(True, "pp", []), (False, "pp", ["LS514"]), (False, "dp", [])],
)
def test_a_stage_whose_gradient_is_sent_back_has_its_own_batch_too(reduced, axis, found):
    """What comes along the data axis itself is of another rank's batch: nothing is sure then."""

    def first_stage(model: Net, x: Tensor) -> Tensor:
        hidden = model(x)
        ls.send(hidden, axis, to=1)
        hidden.backward(ls.recv(hidden, axis, from_=1))
        if reduced:
            ls.reduce_grads(model, dp="mean")
        return ls.settle(hidden)

    mesh = {"pp": 2, "dp": 2}
    built = judged(first_stage, Net(), torch.randn(4, 4), mesh=mesh, data=("dp",))
    assert codes(built) == found, str(built.report)
