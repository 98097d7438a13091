"""Random draws: only what draws is judged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lockstep.checker import randomness
from lockstep.checker.simulation.simulate import Simulation
from lockstep.checker.world import capture_world
from lockstep.spmd.claims import typed
from lockstep.spmd.types import R, S
from tests.checker_cases import random


def batch(mesh):
    parts = random(0, 2 * mesh.size(), 4, 8).chunk(mesh.size())
    return typed(parts[mesh.get_local_rank()].clone(), dp=S(0))


@pytest.mark.parametrize(("dropout", "codes"), [(0.0, []), (0.5, ["LS521"])])
def test_attention_without_dropout_draws_nothing(dropout, codes):
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)  # the same on every rank
        return F.scaled_dot_product_attention(x, x, x, dropout_p=dropout)

    sim = Simulation(capture_world(step, batch, {"dp": 2}))
    seen: dict = {}
    sim.run(sim.feed(), seen=seen)
    types = {sim.rows[0][0].name: {"dp": S(0)}}
    found, undecided = randomness.judge(sim, seen, types)
    assert sorted({finding.code for finding in found}) == codes
    assert undecided == []


def labels_dropped(table: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    drop = torch.rand(labels.shape[0]) < 0.5
    return x * F.embedding(torch.where(drop, 5, labels), table)


def rows_drawn(table: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return x * F.embedding(torch.randint(5, labels.shape), table)


@pytest.mark.parametrize("draw", [labels_dropped, rows_drawn])
@pytest.mark.parametrize(("own", "codes"), [(True, []), (False, ["LS521"])])
def test_a_draw_is_for_what_it_chooses_and_not_for_a_table(draw, own, codes):
    """Every rank holds the table, and rows and labels of its own."""

    def step(table: torch.Tensor, x: torch.Tensor, labels: torch.Tensor, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return draw(table, x, labels).square()

    def make(mesh):
        rank, parts = mesh.get_local_rank(), random(0, 2 * mesh.size(), 4, 8).chunk(mesh.size())
        return random(1, 6, 8), parts[rank][0].clone(), torch.arange(4) + rank, 7 + own * rank

    sim = Simulation(capture_world(step, make, {"dp": 2}))
    seen: dict = {}
    sim.run(sim.feed(), seen=seen)
    names = [sim.rows[at][0].name for at in range(3)]
    types = dict(zip(names, ({"dp": R}, {"dp": S(0)}, {"dp": S(0)}), strict=True))
    found, _ = randomness.judge(sim, seen, types)
    assert sorted({finding.code for finding in found}) == codes
