"""A program that reads its rank is judged with the numbers that each rank would read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.checking import Checking
from lockstep.capture.state import collect
from lockstep.checker.built import judge_built
from lockstep.checker.placed import placed, reads_coordinates
from lockstep.checker.world import simulated_rank

MESH = {"dp": 2, "tp": 3}


def reads(x: torch.Tensor, mesh: Any) -> torch.Tensor:
    dp, tp = mesh.get_coordinate()
    number = dist.get_rank() * 100 + dp * 10 + tp
    return x * (number + dist.get_global_rank(mesh.get_group("tp"), 1) * 1000)


def test_a_ranks_numbers_stand_in_its_graph() -> None:
    found = []
    with simulated_rank(0, MESH) as mesh:
        step = Step(reads)
        call = step.call((torch.ones(2), mesh), {})
        graph = capture_call(step, call, collect(call))
        assert reads_coordinates(graph)
        for coordinate in ({"dp": 0, "tp": 0}, {"dp": 0, "tp": 2}, {"dp": 1, "tp": 1}):
            gm = placed(graph, coordinate, MESH).gm
            assert [n.name for n in gm.graph.nodes] == [n.name for n in graph.gm.graph.nodes]
            found.append(next(n for n in gm.graph.nodes if "mul.Tensor" in str(n.target)).args[1])
    assert found == [1000, 1202, 4411]


def loss_of_own_part(whole: bool) -> Any:
    def step(w: torch.nn.Linear, x: torch.Tensor, mesh: Any) -> torch.Tensor:
        rows = x if whole else x[mesh.get_local_rank("dp") * 2 :][:2]
        loss = w(rows).sum()
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("whole", [True, False])
def test_a_slice_by_the_rank_is_no_fault(whole: bool) -> None:
    with simulated_rank(0, {"dp": 2}) as mesh:
        step, checking = Step(loss_of_own_part(whole)), Checking(ships=True)
        call = step.call((torch.nn.Linear(2, 2), torch.ones(4, 2), mesh), {})
        state = collect(call)
        capture_call(step, call, state, checking)
        built = judge_built(checking, state, mesh)
    assert built.report.findings == []
