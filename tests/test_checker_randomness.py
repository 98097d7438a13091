"""Random draws: only what draws is judged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lockstep.checker import randomness
from lockstep.checker.simulation.simulate import Simulation
from lockstep.checker.world import capture_world
from lockstep.spmd.claims import typed
from lockstep.spmd.types import S
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
