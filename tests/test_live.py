"""Steps that no capture can hold, checked live: the same verdicts, of the path that was taken."""

from __future__ import annotations

import random as python_random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep.checker.live.live import live_world
from lockstep.checker.simulation.simulate import op_name
from lockstep.checker.simulation.twin import beside
from lockstep.checker.world import capture_world
from lockstep.errors import CaptureError
from tests.checker_cases import CASES
from tests.live_cases import Block, block, make_block

TP = {"tp": 2}


@pytest.mark.parametrize("name", ["tensor_parallel", "order", "clipping", "dropout"])
def test_a_tape_is_the_graph_that_a_capture_gives(name):
    make_step, make, mesh, _ = CASES[name]
    step = make_step("")
    captured, lived = capture_world(step, make, mesh), live_world(step, make, mesh)
    for one, other in zip(captured.ranks, lived.ranks, strict=True):
        assert [spec.name for spec in other.graph.inputs] == [s.name for s in one.graph.inputs]
        assert _collectives(other) == _collectives(one) != []
        assert sorted(other.phases.values()) == sorted(one.phases.values())
        assert len(other.cotangents) == len(one.cotangents)
        assert list(other.claims.values()) == list(one.claims.values())
        assert list(other.grads) == list(one.grads)


def _collectives(trace) -> list[str]:
    return [op_name(node) for node in trace.nodes if "c10d" in op_name(node)]


@pytest.mark.parametrize("how", ["loop", "branch", "numpy", "tolist", "number"])
def test_a_right_step_is_right_and_marked_with_what_no_capture_holds(how):
    report = ls.check(block(how), make_block, mesh=TP)
    assert report.ok, report
    assert report.live.startswith("the step ")
    assert ", tests/live_cases.py:" in report.live or how == "tolist"
    text = str(report)
    assert "checked live, op by op, as it cannot be captured: the step " in text
    assert "gradients: 3 of 3 parameters' are the derivative" in text
    assert "one rank: the same numbers for the loss and 3 gradients" in text
    assert report.to_json()["live"] == report.live


@pytest.mark.parametrize("how", ["loop", "numpy"])
def test_a_forgotten_conversion_is_found_and_its_fix_is_verified_live(how):
    report = ls.check(block(how, "no convert"), make_block, mesh=TP, repair_s=100)
    (finding,) = report.findings
    assert finding.axis == "tp" and finding.live and "(live)" in str(finding)
    assert finding.verified and "src=I, dst=R" in finding.fix
    assert finding.line.startswith("tests/live_cases.py:")


def test_a_reduction_left_out_of_the_forward_is_found():
    report = ls.check(block("branch", "no reduce"), make_block, mesh=TP, repair_s=0)
    assert not report.ok and all(finding.live for finding in report.findings)


def test_what_is_captured_is_not_run_live():
    report = ls.check(block(""), make_block, mesh=TP)
    assert report.ok and report.live == "" and "live" not in str(report)


def test_gradients_that_a_read_number_clips_are_judged_by_their_direction():
    assert ls.check(block("clip"), make_block, mesh=TP).ok
    report = ls.check(block("clip", "own norm"), make_block, mesh=TP, repair_s=0)
    assert report.findings and all(finding.axis == "tp" for finding in report.findings)


def test_ranks_that_do_not_call_the_same_collectives_are_told_with_their_lines():
    report = ls.check(block("branch", "one rank"), make_block, mesh=TP)
    (finding,) = report.findings
    assert (finding.code, finding.axis, finding.live) == ("LS510", "tp", True)
    assert "rank 0: waits in all_reduce sum of f64[3, 4], at tests/live_cases.py:" in (finding.got)
    assert "rank 1: " in finding.got
    assert report.established == ["gradients: not judged, the step does not end"]


def test_values_behind_a_collective_are_the_true_ones():
    """Each rank's branch is decided by the whole job's sum, not by its own part."""

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        z = y + y.sum().item()
        dist.all_reduce(z)
        if (y.sum().item(), z.sum().item()) != (12.0, 72.0):
            raise ValueError(z)
        return z

    world = live_world(step, lambda mesh: torch.ones(2) * (mesh.get_local_rank() + 1), TP)
    assert [len(_collectives(trace)) for trace in world.ranks] == [4, 4]
    with pytest.raises(CaptureError, match="fails when it runs live"):
        live_world(step, lambda mesh: torch.ones(2), TP)


def test_nothing_of_the_process_is_changed(capsys):
    model, calls = Block(None), []
    before = model.up.clone()
    states = python_random.getstate()[1], np.random.get_state()[1].tobytes()

    def step(model: Block, x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        print("told by the step")
        if (model.up @ x).sum().item() > -1e9:
            with torch.no_grad():
                model.up.add_(1)
        python_random.random(), np.random.rand()
        model.gain.sum().backward()
        return x

    made = live_world(step, lambda mesh: (model, torch.ones(4)), {"tp": 1})
    assert torch.equal(model.up, before) and model.gain.grad is None
    assert (python_random.getstate()[1], np.random.get_state()[1].tobytes()) == states
    assert calls == [] and capsys.readouterr().out == ""
    assert made.ranks[0].grads["model.gain"] is not None


def test_a_step_that_neither_way_holds_is_refused_as_a_capture_refuses_it():
    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            raise KeyError("lr")
        return x

    with pytest.raises(CaptureError, match="looks at a tensor's value") as raised:
        ls.check(step, lambda mesh: torch.ones(2), mesh=TP)
    (note,) = raised.value.__notes__
    assert "run live, op by op, in place of a capture: LS100: the step fails when it" in note
    assert "KeyError: 'lr'" in note and "tests/test_live.py:" in note


def test_a_step_that_runs_in_its_own_dtypes_alone_is_compared_with_no_twin():
    def step(model: Block, x: torch.Tensor) -> torch.Tensor:
        kept = torch.empty(3, 4, dtype=torch.float32).numpy().dtype  # NumPy's own is no tensor's
        if kept != np.float32 or x.dtype != torch.float32:
            raise TypeError("float32 alone")
        loss = block("")(model, x)
        return loss

    report = ls.check(step, make_block, mesh=TP)
    assert report.ok
    assert "one rank: not compared, the step does not run in float64" in str(report)


def test_ranks_that_do_not_end_in_time_are_told():
    def step(x: torch.Tensor) -> torch.Tensor:
        while True:
            x = x.clone()
            dist.all_reduce(x)
            x.sum().item()

    with pytest.raises(CaptureError, match="did not end in time") as raised:
        live_world(step, lambda mesh: torch.ones(2), TP, limit_s=0)
    assert "lockstep check SCRIPT" in str(raised.value)


def test_a_step_whose_ranks_take_other_ways_is_told_as_not_judged():
    def step(x: torch.Tensor, w: nn.Parameter) -> torch.Tensor:
        y = x * w
        if x.sum().item() > 0:
            y = y * 2
        y.sum().backward()
        return y

    def make(mesh):
        return torch.ones(2) * (-1) ** mesh.get_local_rank(), nn.Parameter(torch.ones(2))

    report = ls.check(step, make, mesh={"dp": 2}, data="dp")
    assert "gradients: not judged, the ranks' programs differ" in str(report)


def test_a_live_step_is_compared_with_itself_on_one_rank():
    from lockstep.checker.placement import jitter, place
    from lockstep.checker.simulation.gold import Gold
    from lockstep.checker.simulation.simulate import Simulation

    step = block("branch")
    world, one = live_world(step, make_block, TP), live_world(step, make_block, {"tp": 1})
    placement = place(world)
    jitter(world, placement)
    assert beside(world, Gold(Simulation(world), placement), one).findings == []
    wrong = live_world(block("branch", "half"), make_block, {"tp": 1})
    assert beside(world, Gold(Simulation(world), placement), wrong).findings != []
