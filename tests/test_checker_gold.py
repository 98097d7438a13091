"""True gradients beside traced ones: right programs have none wrong, each fault shows."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep.checker.placement import jitter, own_batches, place
from lockstep.checker.simulation.gold import Gold
from lockstep.checker.simulation.simulate import Divergent, Simulation
from lockstep.checker.world import World, capture_world
from lockstep.spmd.claims import typed
from lockstep.spmd.types import I, S
from tests.checker_cases import CASES, copy_in, random, reduce_out


@functools.cache
def gold(name: str, fault: str = "") -> Gold:
    make_step, make, mesh, _ = CASES[name]
    return judged(capture_world(make_step(fault), make, mesh))


def judged(world: World) -> Gold:
    placement = place(world)
    jitter(world, placement)
    return Gold(Simulation(world), placement)


def wrong(found: Gold) -> dict[str, str]:
    return {name: j.wrong for name, j in found.judge_parameters().items() if j.wrong}


@pytest.mark.parametrize("name", CASES)
def test_right_programs_have_right_gradients(name: str):
    found = gold(name)
    assert found.problem == "" and found.meaning.findings == []
    assert wrong(found) == {}
    assert None not in [kinds for _, kinds in found.cotangents().values()]


def test_a_missing_copy_makes_what_is_upstream_wrong():
    assert set(wrong(gold("tensor_parallel", "no copy"))) == {"m.x", "m.g"}


def test_a_reduction_too_many_in_the_backward_doubles():
    assert wrong(gold("tensor_parallel", "to R"))["m.w1"] == "2 times the true one"


def test_a_gradient_that_no_one_reduced_is_partial():
    judged = gold("sequence_parallel", "no hook").judge_parameters()
    assert judged["m.g"].partial_on == "tp" and not judged["m.w1"].wrong
    assert gold("data_parallel", "one left").judge_parameters()["m.v"].partial_on == "dp"


def test_a_loss_of_unknown_meaning_is_asked_for():
    (finding,) = gold("data_parallel", "unsaid").meaning.findings
    assert finding.code == "LS533" and finding.axis == "dp" and "ls.loss(loss, dp=" in finding.fix
    assert finding.source == "loss = e.mean()"


def test_a_clipping_factor_must_be_one():
    found = wrong(gold("clipping", "own norm"))
    assert set(found) == {"m.b", "m.w"} and "differ between ranks" in found["m.w"]


@pytest.mark.parametrize(("way", "expected"), [("mean", set()), ("sum", {"m.w", "m.v"})])
def test_pending_reductions_are_done_before_judging(way: str, expected: set[str]):
    make_step, make, mesh, _ = CASES["data_parallel"]
    world = capture_world(make_step("none"), make, mesh)
    found = Gold(Simulation(world), place(world), pending={"dp": way})
    assert set(wrong(found)) == expected


def test_other_structures_are_told_with_both_lines():
    def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if dist.get_rank() else x * 2

    with pytest.raises(Divergent) as told:
        Simulation(capture_world(step, lambda mesh: torch.ones(2), {"tp": 2}))
    assert told.value.ranks == (0, 1) and "aten.mul" in told.value.ops[0]


def test_zero_is_not_called_right():
    def step(m: nn.Module) -> torch.Tensor:
        loss = (m.w * 0.0).sum()
        loss.backward()
        return loss

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(random(0, 3))

    found = judged(capture_world(step, lambda mesh: One(), {"tp": 2}))
    assert not found.judge_parameters()["m.w"].exercised


def test_constants_are_undecided_and_taken_either_way():
    def step(m: nn.Module) -> torch.Tensor:
        y = reduce_out((copy_in(m.x) * m.w + m.b).sum())
        loss = (y**2).sum()
        loss.backward()
        return loss

    class Shards(nn.Module):
        def __init__(self, mesh: object) -> None:
            super().__init__()
            self.x = nn.Parameter(random(1, 1))
            self.w = nn.Parameter(random(2, 8).chunk(2)[dist.get_rank()].clone())
            self.b = nn.Parameter(torch.zeros(4))
            typed(self.x, tp=I)

    found = judged(capture_world(step, Shards, {"tp": 2}))
    assert wrong(found) == {}
    (line,) = found.placement.undecided()
    assert "m.b is constant" in line and "ls.typed(m.b, tp=...)" in line


@pytest.mark.parametrize(("scale", "expected"), [(0.5, set()), (1.0, {"m.w", "m.v", "m.b"})])
def test_a_constant_in_a_bucket_is_read_as_the_others_factor_says(scale: float, expected: set[str]):
    def step(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(((x * m.w).sum() * m.v + m.b).square().sum(), dp="mean")
        loss.backward()
        flat = torch.cat([m.w.grad, m.v.grad, m.b.grad])
        dist.all_reduce(flat)
        m.w.grad, m.v.grad, m.b.grad = (flat * torch.tensor([0.5] * 9 + [scale])).split([4, 5, 1])
        return loss

    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.v = nn.Parameter(random(1, 4)), nn.Parameter(random(2, 5))
            self.b = nn.Parameter(torch.zeros(1))  # one element: any gradient is a multiple

    def make(mesh: object) -> object:
        return Copies(), random(3, 2, 4)[dist.get_rank()]

    found = judged(capture_world(step, make, {"dp": 2}))
    assert list(found.placement.open) == ["m.b"]
    assert set(wrong(found)) == expected


def test_a_claim_that_values_contradict_is_found():
    def make(mesh: object) -> nn.Module:
        layer = nn.Linear(2, 2)
        with torch.no_grad():
            layer.weight += dist.get_rank()
        typed(layer.weight, tp=I)
        return layer

    (finding,) = place(capture_world(lambda m: m.weight + 1, make, {"tp": 2})).findings
    assert finding.code == "LS534" and finding.axis == "tp"


def test_jitter_keeps_equal_what_is_equal_and_parts_in_place():
    def make(mesh: object) -> nn.Module:
        layer = nn.Linear(4, 2)
        nn.init.zeros_(layer.bias)
        nn.init.ones_(layer.weight)
        typed(layer.weight, tp=S(0))
        return layer

    def on(ranks: int) -> World:
        world = capture_world(lambda m: m.weight + 1, make, {"tp": ranks})
        jitter(world, place(world))
        return world

    shards = [trace.inputs[0] for trace in on(2).ranks]
    assert not torch.equal(shards[0], shards[1]) and shards[0].unique().numel() == 8
    assert torch.equal(on(1).ranks[0].inputs[0], shards[0])
    biases = [trace.inputs[1] for trace in on(2).ranks]
    assert torch.equal(biases[0], biases[1]) and bool((biases[0] != 0).all())


def test_each_rank_gets_a_batch_of_its_own_along_data_axes():
    world = capture_world(
        lambda x, t: x + t, lambda mesh: (random(0, 3), torch.arange(3)), {"dp": 2}
    )
    own_batches(world, ("dp",))
    (x0, t0), (x1, t1) = (trace.inputs for trace in world.ranks)
    assert not torch.equal(x0, x1) and t1.tolist() == [2, 0, 1] and t0.tolist() == [0, 1, 2]
