"""Stages beside other axes: the plan's own layout, one gather a step, tied ends, and the types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lockstep as ls
from lockstep import parallel
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture, capture_call
from lockstep.capture.checking import Checking
from lockstep.capture.sent import messages_of
from lockstep.capture.state import collect
from lockstep.checker.built import Built, judge_built
from lockstep.checker.inference.rules.registry import op_name
from lockstep.checker.world import simulated_rank
from lockstep.models import llama, llama_plan, llama_stages
from lockstep.parallel import tied
from lockstep.parallel.fully_sharded import gathered_once
from lockstep.parallel.sequence import Stream
from lockstep.run.stages import Roles
from lockstep.spmd.types import I, R, S, V
from tests.parallel.layouts import NARROW

TEXT = torch.arange(4 * 9).view(4, 9) % 7
SEQUENCE = llama_plan.Plan(sequence=True)
REGATHER = llama_plan.Plan(regather=True)


def whole(**changes: Any) -> llama.Llama:
    torch.manual_seed(0)
    return llama.Llama(llama.config("debug", **{**NARROW, **changes}))


def grads(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def step(stage: parallel.Stage, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
    loss = parallel.pipeline_step(stage, tokens, labels, micro_batches=2)
    parallel.reduce_grads(stage)
    return loss, parallel.clip_grad_norm(stage, 0.5)


def forgotten(stage: parallel.Stage, tokens: torch.Tensor, labels: torch.Tensor) -> Any:
    return parallel.pipeline_step(stage, tokens, labels, micro_batches=2)


# ---- the plan's layout -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "plan"),
    [
        ({"tp": 1}, None),
        ({"tp": 1}, SEQUENCE),
        ({"fsdp": 1}, None),
        ({"fsdp": 1}, REGATHER),
        ({"cp": 1}, None),
        ({"dp": 1, "fsdp": 1, "cp": 1, "tp": 1}, SEQUENCE),
    ],
)
def test_one_stage_alone_computes_what_the_plan_s_model_does(axes, plan):
    plain = llama_plan.parallelize(whole(tied=True), ls.mesh("cpu", **axes), plan)
    want = parallel.forward_backward(plain, TEXT[:, :-1], TEXT[:, 1:], micro_batches=2)
    stage = llama_stages.cut(whole(tied=True), ls.mesh("cpu", pp=1, **axes), plan, chunks=2)
    got = parallel.pipeline_step(stage, TEXT[:, :-1], TEXT[:, 1:], micro_batches=2)
    torch.testing.assert_close(got, want)
    assert sorted(grads(stage)) == sorted(grads(plain))
    for name, value in grads(plain).items():
        torch.testing.assert_close(grads(stage)[name], value)
    assert parallel.layout(stage) == parallel.layout(plain)


def test_a_stage_lies_as_the_plan_says_and_is_its_own_along_pp():
    with simulated_rank(7, {"pp": 2, "dp": 2, "tp": 2}) as mesh:
        stage = llama_stages.cut(whole(), mesh, SEQUENCE)
        placed = parallel.placements(stage)
        assert placed["layers.1.attention.wo.weight"].types == {"dp": R, "tp": S(1), "pp": V}
        assert placed["layers.1.attention.wo.weight"].offsets == (0, 8)
        assert placed["norm.weight"].types == {"dp": R, "tp": I, "pp": V}
        assert stage.travels == {"tp": S(1)} and stage.empty(TEXT[:, :8]).shape == (4, 4, 16)
        narrow = llama_stages.cut(whole(), mesh, llama_plan.Plan(dtype=torch.bfloat16))
        assert narrow.travels == {"tp": I} and narrow.empty(TEXT).dtype == torch.bfloat16


# ---- gathered once a step --------------------------------------------------------------------


def counted(plan: llama_plan.Plan, micro: int) -> dict[str, int]:
    """How often a step gathers and reduces."""

    def one(stage, tokens, labels):
        return parallel.pipeline_step(stage, tokens, labels, micro_batches=micro)

    with simulated_rank(0, {"pp": 1, "fsdp": 2}) as mesh:
        stage = llama_stages.cut(whole(), mesh, plan)
        graph = capture(one, stage, TEXT[:, :-1], TEXT[:, 1:])
        names = [op_name(node.target) for node in graph.gm.graph.nodes]
    found = {verb: sum(verb in name for name in names) for verb in ("all_gather", "reduce_scatter")}
    assert len(list(stage.parameters())) == 21
    return found


def test_shards_are_gathered_and_reduced_once_a_step_or_at_each_use():
    assert counted(llama_plan.Plan(), 1) == {"all_gather": 21, "reduce_scatter": 21}
    assert counted(llama_plan.Plan(), 2) == {"all_gather": 21, "reduce_scatter": 21}
    again = counted(REGATHER, 2)
    assert again["reduce_scatter"] == 2 * 21 and again["all_gather"] > 2 * 21


def test_gradients_of_a_narrow_whole_add_up_in_the_parameter_s_own_dtype():
    """256 + 1 is 256 in bfloat16: a sum of micro-batches in it would lose the small ones."""
    with simulated_rank(0, {"fsdp": 1}):
        linear = torch.nn.Linear(1, 3, bias=False)  # three rows
        (parameter,) = linear.parameters()
        parallel.place(linear, {"*": {}})
        parallel.fully_shard(linear, "fsdp", dtype=torch.bfloat16)
        with gathered_once() as once:
            for size in (256.0, 1.0, 2.0):
                once.last = size == 2.0
                linear(torch.full((1, 1), size, dtype=torch.bfloat16)).sum().backward()
                assert (parameter.grad is None) is (not once.last)
    assert parameter.grad.flatten().tolist() == [259.0] * 3


# ---- tied ends -------------------------------------------------------------------------------


def programs(stages: int, chunks: int) -> dict[Any, Any]:
    """The messages of every stage of a tied model."""
    found = {}
    for at in range(stages):
        with simulated_rank(at, {"pp": stages}) as mesh:
            model = whole(tied=True, layers=stages * chunks)
            stage = llama_stages.cut(model, mesh, chunks=chunks)
            graph = capture(forgotten, stage, TEXT[:, :-1], TEXT[:, 1:])
            found[at,] = messages_of(graph.gm)
    return found


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (3, 1)])
def test_the_ends_of_a_tied_model_exchange_their_gradients(stages, chunks):
    sent = programs(stages, chunks)
    assert Roles(("pp",), {"pp": stages}, sent).fault() is None
    told = [[(row["op"], row["place"], row["shape"]) for row in rows] for rows in sent.values()]
    shape = ["32", "16"]
    assert told[0][-2:] == [("send", -1, shape), ("recv", -1, shape)]
    assert told[-1][-2:] == [("send", 1, shape), ("recv", 1, shape)]
    assert not any(row[2] == shape for rows in told[1:-1] for row in rows)
    lost = {**sent, (stages - 1,): sent[stages - 1,][:-2]}
    assert Roles(("pp",), {"pp": stages}, lost).fault() is not None


def test_a_tied_weight_counts_on_the_first_stage_alone():
    copies = {}
    for at in range(2):
        with simulated_rank(at, {"pp": 2}) as mesh:
            stage = llama_stages.cut(whole(tied=True), mesh)
            copies[at] = [n for n, p in stage.named_parameters() if tied.copied_from(p)]
            assert len(stage.shared()) == 1
    assert copies == {0: [], 1: ["output.weight"]}
    norms = []
    for mark in (False, True):
        model = torch.nn.Linear(1, 1)
        parallel.place(model, {"*": {}})
        model.weight.grad, model.bias.grad = torch.full((1, 1), 4.0), torch.full((1,), 3.0)
        if mark:
            tied.mark_copy(model.weight, "tok_embeddings.weight")
        norms.append(parallel.grad_norm(model).item())
    assert norms == [5.0, 3.0]


# ---- what the types are sure of --------------------------------------------------------------


def judged(at: int, mesh: dict[str, int], plan: llama_plan.Plan, run: Any = step) -> Built:
    """Judge the program of a stage of a tied model."""
    with simulated_rank(at, mesh) as made:
        stage = llama_stages.cut(whole(tied=True), made, plan)
        taken = Step(run)
        call = taken.call((stage, TEXT[:, :-1], TEXT[:, 1:]), {})
        state, checking = collect(call), Checking(ships=True)
        capture_call(taken, call, state, checking)
        return judge_built(checking, state, made, parallel.layout(stage).data)


TENSOR = {"pp": 2, "dp": 2, "tp": 2}
SHARDED = {"pp": 2, "dp": 2, "fsdp": 2}


@pytest.mark.parametrize(
    ("mesh", "plan", "at"),
    [
        (TENSOR, SEQUENCE, 0),
        (TENSOR, llama_plan.Plan(), 4),
        (SHARDED, llama_plan.Plan(), 0),
        ({"pp": 2, "dp": 2, "cp": 2}, llama_plan.Plan(), 4),
    ],
    ids=["tp+sp", "tp", "fsdp", "cp"],
)
def test_the_types_are_silent_on_a_right_stage(mesh, plan, at):
    built = judged(at, mesh, plan)
    assert not built.report.findings, str(built.report)


@pytest.mark.parametrize(
    ("mesh", "plan", "at"),
    [(TENSOR, SEQUENCE, 4), (SHARDED, llama_plan.Plan(), 0)],
    ids=["tp+sp", "fsdp"],
)
def test_the_types_find_gradients_that_are_not_reduced(mesh, plan, at):
    built = judged(at, mesh, plan, forgotten)
    assert {finding.code for finding in built.report.findings} == {"LS514"}


@pytest.mark.parametrize("told", [True, False])
def test_what_is_said_of_the_stream_finds_a_sum_that_is_left_unfinished(told, monkeypatch):
    """A part that adds terms of a sum to the stream is found by what the stage says of it alone."""
    monkeypatch.setattr(Stream, "leave", lambda self, x: x)
    if not told:
        monkeypatch.setattr(llama_stages, "I", V)
    built = judged(2, {"pp": 2, "tp": 2}, llama_plan.Plan())
    assert bool(built.report.findings) is told, str(built.report)
