"""Simulated ranks: each sees its own rank, nothing is left behind, and the notes are right."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import lockstep as ls
from lockstep.checker.world import World, arguments_of, capture_world, simulated_rank
from lockstep.spmd import mesh as axes
from lockstep.spmd.claims import typed
from lockstep.spmd.types import S


class Column(nn.Module):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        whole = torch.arange(32.0).view(8, 4)
        self.weight = nn.Parameter(whole.chunk(mesh.size())[dist.get_rank()].clone())
        typed(self.weight, tp=S(0))


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    h = typed(F.linear(x, model.weight), tp=S(1))
    loss = (torch.dropout(h, 0.5, True) ** 2).sum() * (1.0 + dist.get_rank())
    loss.backward()
    return (model.weight.grad**2).sum()


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def world() -> World:
    return capture_world(step, lambda m: (Column(m), torch.ones(3, 4)), {"tp": 2})


def test_each_rank_sees_itself():
    ranks = world().ranks
    assert [trace.coordinate for trace in ranks] == [{"tp": 0}, {"tp": 1}]
    assert ranks[1].inputs[0][0, 0] == 16.0 and ranks[1].inputs[0].dtype is torch.float64
    factors = [n.args[1] for t in ranks for n in t.nodes if "mul.Tensor" in str(n.target)][::1]
    assert 1.0 in factors and 2.0 in factors


def test_claims_marks_and_cotangents_are_by_node_name():
    trace = world().ranks[0]
    weight = trace.placeholder("model.weight").name
    assert trace.claims[weight] == {"tp": S(0)}
    assert [types for name, types in trace.claims.items() if name != weight] == [{"tp": S(1)}]
    assert weight in trace.cotangents
    assert trace.phases[trace.cotangents[weight]] == "backward"
    held = next(node for node in trace.nodes if node.name == trace.grads["model.weight"])
    assert [source.name for source in held.all_input_nodes] == [trace.cotangents[weight]]


def test_what_is_computed_from_gradients_comes_after():
    trace = world().ranks[0]
    output = trace.graph.gm.graph.output_node().args[0]
    assert trace.phases[output[0].name] == "after"


def test_draws_are_noted_with_their_state():
    first, second = (trace.notes.draws for trace in world().ranks)
    assert len(first) == 1 and torch.equal(first[0][1], second[0][1])


def test_groups_are_row_major():
    made = capture_world(plain, lambda m: torch.ones(1), {"dp": 2, "tp": 2})
    assert made.group(1, "tp") == [0, 1] and made.group(1, "dp") == [1, 3]
    assert made.group(2, "world") == [0, 1, 2, 3]
    assert made.groups(["dp"]) == [[0, 2], [1, 3]]


def test_a_real_world_and_its_axes_come_back():
    made = ls.mesh(dp=1)
    group, known = dist.group.WORLD, axes.axis("dp")
    before = os.environ.get("RANK")
    world()
    assert (
        dist.group.WORLD is group and axes.axis("dp") is known and os.environ.get("RANK") == before
    )
    x = torch.ones(2)
    dist.all_reduce(x, group=made.get_group("dp"))
    assert x.tolist() == [1.0, 1.0]
    with pytest.raises(ls.LockstepError):
        axes.axis("nowhere")


def test_a_step_that_fails_leaves_nothing_behind():
    was = dist.is_initialized()
    with pytest.raises(ZeroDivisionError):
        capture_world(lambda x: x / (1 // 0), lambda m: torch.ones(1), {"tp": 2})
    assert dist.is_initialized() is was


def test_make_may_give_args_alone():
    assert arguments_of(3) == ((3,), {})
    assert arguments_of((1, 2)) == ((1, 2), {})
    assert arguments_of(((1, 2), {"a": 3})) == ((1, 2), {"a": 3})


def test_a_simulated_rank_leaves_no_hook_for_uncaught_errors():
    hook = sys.excepthook
    with simulated_rank(1, {"dp": 2}):
        assert sys.excepthook is not hook  # torch's, which says which rank it is
    assert sys.excepthook is hook
