"""A capture that went through bytes is judged as the one that did not."""

from __future__ import annotations

import pytest

from lockstep.capture.origin import META
from lockstep.checker.inference.types import infer
from lockstep.checker.placement import jitter, place
from lockstep.checker.shipping import from_bytes, to_bytes
from lockstep.checker.simulation.gold import Gold
from lockstep.checker.simulation.simulate import Simulation
from lockstep.checker.world import World, capture_world
from lockstep.errors import CaptureError
from tests.checker_cases import CASES


def worlds(name: str, fault: str) -> tuple[World, World]:
    make_step, make, mesh, _ = CASES[name]
    world = capture_world(make_step(fault), make, mesh)
    return world, World(world.mesh, [from_bytes(to_bytes(trace)) for trace in world.ranks])


def wrong(world: World) -> dict[str, str]:
    placement = place(world)
    jitter(world, placement)
    judged = Gold(Simulation(world), placement).judge_parameters()
    return {name: j.wrong for name, j in judged.items() if j.wrong}


@pytest.mark.parametrize(
    ("name", "fault"), [("tensor_parallel", ""), ("tensor_parallel", "no copy"), ("dropout", "")]
)
def test_a_shipped_world_gets_the_same_verdict(name: str, fault: str):
    here, there = worlds(name, fault)
    lines = [[str(finding) for finding in infer(world).findings] for world in (here, there)]
    assert lines[0] == lines[1]
    found = wrong(here), wrong(there)
    assert found[0] == found[1]
    assert bool(found[0]) == bool(fault)


def test_nodes_keep_their_names_lines_and_shapes():
    here, there = worlds("tensor_parallel", "")
    for node, other in zip(here.ranks[1].nodes, there.ranks[1].nodes, strict=True):
        assert (node.name, str(node.target)) == (other.name, str(other.target))
        assert str(node.args) == str(other.args)
        assert node.meta.get(META) == other.meta.get(META)
        if node.op == "call_function" and "val" in node.meta:
            assert node.meta["val"].shape == other.meta["val"].shape
    assert here.ranks[1].cotangents == there.ranks[1].cotangents
    assert {n.name for n in there.ranks[1].notes.cuts} <= {n.name for n in there.ranks[1].nodes}


def test_what_cannot_be_given_to_another_process_is_told():
    here, _ = worlds("tensor_parallel", "")
    here.ranks[0].nodes[-2].kwargs = {"what": lambda: None}
    with pytest.raises(CaptureError, match="cannot be handed to the process that judges it"):
        to_bytes(here.ranks[0])
