"""What a step asks of its mesh is answered, and leaves nothing in the graph but the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.checker.world import capture_world, simulated_rank
from lockstep.errors import CaptureError

MESH = {"dp": 2, "tp": 3}
ASKED: dict[str, tuple[Callable[[Any], int], list[int]]] = {
    "sliced size": (lambda mesh: mesh["dp"].size(), [2] * 6),
    "size of two": (lambda mesh: mesh["dp", "tp"].size(), [6] * 6),
    "size by dimension": (lambda mesh: mesh.size(1), [3] * 6),
    "shape": (lambda mesh: mesh["tp"].shape[0], [3] * 6),
    "world size of a group": (lambda mesh: dist.get_world_size(mesh["tp"].get_group()), [3] * 6),
    "table of ranks": (lambda mesh: mesh["tp"].mesh.numel(), [3] * 6),
    "flattened": (lambda mesh: mesh["dp", "tp"]._flatten("all").size(), [6] * 6),
    "sliced rank": (lambda mesh: mesh["dp"].get_local_rank(), [0, 0, 0, 1, 1, 1]),
    "rank by name": (lambda mesh: mesh.get_local_rank("tp"), [0, 1, 2, 0, 1, 2]),
    "rank in a group": (lambda mesh: dist.get_rank(mesh["tp"].get_group()), [0, 1, 2, 0, 1, 2]),
    "coordinate": (lambda mesh: mesh["tp"].get_coordinate()[0], [0, 1, 2, 0, 1, 2]),
}
GROUPS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "by name": (lambda mesh: mesh.get_group("dp"), "dp"),
    "of a slice": (lambda mesh: mesh["tp"].get_group(), "tp"),
    "of two axes, one of them": (lambda mesh: mesh["dp", "tp"].get_group("tp"), "tp"),
    "all of a slice": (lambda mesh: mesh["dp"].get_all_groups()[0], "dp"),
    "flattened": (lambda mesh: mesh["dp", "tp"]._flatten("all").get_group(), "world"),
}


class Holder(torch.nn.Module):
    """A module that keeps its mesh, as layers of large models do."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh


def as_attribute(asked: Callable[[Any], Any]) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    def step(holder: Holder, x: torch.Tensor) -> torch.Tensor:
        return x * (100 + asked(holder.mesh))

    return step, lambda mesh: (Holder(mesh), torch.ones(2))


def as_argument(asked: Callable[[Any], Any]) -> tuple[Callable[..., Any], Callable[[Any], Any]]:
    def step(mesh: Any, x: torch.Tensor) -> torch.Tensor:
        return x * (100 + asked(mesh))

    return step, lambda mesh: (mesh, torch.ones(2))


@pytest.mark.parametrize("pass_mesh", [as_attribute, as_argument])
@pytest.mark.parametrize("name", ASKED)
def test_a_check_gets_each_ranks_answer(name: str, pass_mesh: Any) -> None:
    asked, expected = ASKED[name]
    step, make = pass_mesh(asked)
    world = capture_world(step, make, MESH)
    for trace, number in zip(world.ranks, expected, strict=True):
        assert [spec.name for spec in trace.graph.inputs] == ["x"]
        (node,) = [n for n in trace.nodes if n.op == "call_function"]
        assert node.args[1] == 100 + number


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_named_by_its_axis(name: str) -> None:
    group_of, axis = GROUPS[name]

    def step(mesh: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group_of(mesh))
        return x

    world = capture_world(step, lambda mesh: (mesh, torch.ones(2)), MESH)
    reduced = [n for n in world.ranks[4].nodes if "all_reduce" in str(n.target)]
    assert [node.args[2] for node in reduced] == [axis]


def test_a_build_asks_sizes_but_makes_no_group() -> None:
    with simulated_rank(0, {"pp": 2, "dp": 2, "tp": 2}) as mesh:
        graph = capture(lambda x: x * mesh["dp"].size() * mesh["dp", "tp"].size(), torch.ones(2))
        assert [n.args[1] for n in graph.gm.graph.nodes if n.op == "call_function"] == [2, 4]

        def flattens(x: torch.Tensor) -> torch.Tensor:
            return x * mesh["dp", "tp"]._flatten("both").size()

        with pytest.raises(CaptureError, match="makes a process group") as caught:
            capture(flattens, torch.ones(2))
        assert "test_meshes_in_steps.py" in str(caught.value)
        mesh["dp", "tp"]._flatten("both")  # made before the step
        assert capture(flattens, torch.ones(2)).inputs[0].name == "x"


def test_a_check_compares_a_step_that_gets_its_mesh_with_one_rank() -> None:
    def step(mesh: Any, x: torch.Tensor) -> torch.Tensor:
        return x * mesh["dp"].size() / mesh.size(0)

    report = ls.check(step, lambda mesh: (mesh, torch.ones(2)), mesh={"dp": 2})
    assert report.ok and "one rank: the same numbers" in str(report)
