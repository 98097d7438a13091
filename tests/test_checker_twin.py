"""Layouts are read off the values; what no layout explains is found where it begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_autograd
import torch.nn.functional as F

import lockstep as ls
from lockstep.checker.finding import Finding
from lockstep.checker.simulation.frontier import explained
from lockstep.checker.simulation.matching import index_map
from lockstep.checker.world import World, capture_world
from tests.checker_cases import Held, copy_in, random, reduce_out


def _world() -> World:
    return capture_world(lambda x: x + 1, lambda mesh: torch.ones(1), {"tp": 2})


def test_fused_and_copied_layouts_are_located_by_value():
    world, whole = _world(), random(0, 6, 4)
    q, k, v = whole.chunk(3)
    fused = [torch.cat([part.chunk(2)[r] for part in (q, k, v)]) for r in range(2)]
    maps = index_map(world, fused, whole, {})
    assert all(torch.equal(whole.flatten()[m], part) for m, part in zip(maps, fused, strict=True))
    copies = [whole[:2], whole[:2]]
    assert index_map(world, copies, whole, {}) is not None
    assert index_map(world, [whole[:2] * 2, whole[2:4]], whole, {}) is None


def test_repeated_values_are_cut_by_claim_or_by_dimension():
    world, whole = _world(), torch.arange(8) // 2
    halves = list(whole.chunk(2))
    maps = index_map(world, halves, whole, {})
    assert [m.tolist() for m in maps] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    ones = torch.ones(4)
    maps = index_map(world, list(ones.chunk(2)), ones, {"tp": ls.S(0)})
    assert [m.tolist() for m in maps] == [[0, 1], [2, 3]]


def test_repeated_values_may_be_cut_by_several_axes():
    mesh = {"dp": 2, "tp": 2}
    world = capture_world(lambda x: x + 1, lambda mesh: torch.ones(1), mesh)
    whole = torch.tensor([[0, 1, 1, 2], [2, 3, 0, 3]])
    maps = index_map(world, list(whole.flatten().view(4, 1, 2)), whole, {})
    assert [m.tolist() for m in maps] == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]]]
    rows = list(whole[0].chunk(4))
    assert [m.tolist() for m in index_map(world, rows, whole[0], {})] == [[0], [1], [2], [3]]
    assert index_map(world, rows[::-1], whole[0], {}) is None


def test_a_value_is_explained_by_its_elements_or_by_pending_sums_and_means():
    world, whole = _world(), random(0, 4).double()
    part = random(1, 4).double()
    assert explained(world, [whole.flip(0), whole[:2]], whole)
    assert explained(world, [part, whole - part], whole)
    assert explained(world, [2 * part, 2 * (whole - part)], whole)
    assert not explained(world, [part, whole + part], whole)


def _make(mesh: Any) -> Held:
    tensors = {"x": (random(0, 4, 8), ls.I), "w1": (random(2, 16, 8), ls.S(0))}
    return Held(mesh, **tensors, w2=(random(3, 8, 16), ls.S(1)))


def _normalised(over: str) -> Any:
    def step(m: Held) -> torch.Tensor:
        h = F.linear(copy_in(m.x), m.w1)
        square = (h * h).sum(-1, keepdim=True)
        square = reduce_out(square) if over == "all" else square * 2
        a = h / square.sqrt() if over != "all" else h / copy_in(square).sqrt()
        loss = (reduce_out(F.linear(a, m.w2)) ** 2).sum()
        loss.backward()
        return loss

    return step


def test_a_norm_over_the_own_shard_is_found_beside_one_rank():
    assert ls.check(_normalised("all"), _make, mesh={"tp": 2}, repair_s=0).ok
    found = ls.check(_normalised("own"), _make, mesh={"tp": 2}, repair_s=0)
    assert not found.ok and found.findings[0].line, str(found)


def test_an_algorithm_that_needs_its_ranks_is_not_compared():
    def step(m: Held) -> torch.Tensor:
        loss = (reduce_out(F.linear(copy_in(m.x), m.w1).view(4, 8) @ m.w2.mT.view(8, 8)) ** 2).sum()
        loss.backward()
        return loss

    told = "\n".join(ls.check(step, _make, mesh={"tp": 2}, repair_s=0).established)
    assert "one rank: not compared, the step does not run on one rank" in told


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AttributeError("'Tensor' object has no attribute 'full_tensor'"), "'Tensor' object has"),
        (KeyError("tp"), "'tp'"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_whatever_a_step_raises_on_one_rank_is_told_and_no_error(error: Exception, told: str):
    def step(m: Held) -> torch.Tensor:
        if dist.get_world_size() == 1:
            raise error
        loss = (reduce_out(F.linear(F.linear(copy_in(m.x), m.w1), m.w2)) ** 2).sum()
        loss.backward()
        return loss

    report = ls.check(step, _make, mesh={"tp": 2}, repair_s=0)
    assert report.ok and not report.undecided
    said = "\n".join(report.established)
    assert f"one rank: not compared, the step does not run on one rank: {told}" in said


@pytest.mark.filterwarnings("ignore:torch.distributed.nn:FutureWarning")
def test_a_loss_of_a_ranks_own_rows_is_told_at_its_line_where_no_value_is_odd():
    def make(mesh: Any) -> Any:
        return Held(mesh, x=(random(0, 4, 8), ls.S(0)), w=(random(1, 8, 8), ls.S(1)))

    def step(m: Held, said: bool) -> torch.Tensor:
        h = torch.cat(with_autograd.all_gather(m.x)).tanh() @ m.w @ m.w.mT
        parts = [part.contiguous() for part in h.chunk(dist.get_world_size())]
        own = with_autograd.reduce_scatter(torch.empty_like(parts[0]), parts)
        loss = own.square().sum()
        loss = ls.loss(loss, tp="sum") if said else loss
        loss.backward()
        return loss

    def findings(said: bool) -> list[Finding]:
        made = lambda mesh: (make(mesh), said)  # noqa: E731
        return ls.check(step, made, mesh={"tp": 2}, repair_s=0).findings

    assert findings(True) == []
    (finding,) = findings(False)
    assert finding.code == "LS533" and finding.source == "loss = own.square().sum()"


def test_a_loss_that_is_scaled_and_averaged_is_told_at_the_line_of_the_scale():
    def make(mesh: Any) -> Any:
        rows = random(0, 4, 4).chunk(mesh.size())
        return Held(mesh, w=(random(1, 4), ls.R)), rows[mesh.get_local_rank("dp")]

    def step(m: Held, x: torch.Tensor, scale: bool = True) -> torch.Tensor:
        loss = ls.loss(((x * m.w) ** 2).mean(), dp="mean")
        scaled = loss / dist.get_world_size() if scale else loss
        scaled.backward()
        ls.reduce_grads(m, dp="mean")
        return loss

    (finding,) = ls.check(step, make, mesh={"dp": 2}, data="dp", repair_s=0).findings
    assert finding.source.startswith("scaled = loss /") and finding.axis == "dp"
    assert "the mean of the ranks' losses over dp is 0.5 times" in finding.got
    right = ls.check(lambda m, x: step(m, x, False), make, mesh={"dp": 2}, data="dp", repair_s=0)
    assert right.ok
