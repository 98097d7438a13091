"""How a DTensor is divided, in words and back; and what no program takes of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from lockstep.capture.layout import Layout, layout_of, meshes_of, read_layout, types_of_layout
from lockstep.checker.relaid import relaid
from lockstep.checker.world import simulated_rank
from lockstep.errors import CaptureError, ContractError


@pytest.fixture
def mesh() -> Iterator[Any]:
    with simulated_rank(1, {"dp": 2, "tp": 2}) as made:
        yield made


def divided(mesh: Any, *placements: Placement, shape: tuple[int, ...] = (4, 6)) -> DTensor:
    local = torch.arange(24.0)[: 24 // 4].reshape(2, 3)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=(shape[1], 1)
    )


def test_a_layout_goes_there_and_back(mesh: Any) -> None:
    made = divided(mesh, Shard(1), Shard(0))
    layout = layout_of("w", made)
    assert layout == Layout(("dp", "tp"), ("S(1)", "S(0)"), (4, 6), (6, 1))
    assert layout.text == "S(1) on dp, S(0) on tp of [4, 6]"
    assert read_layout(layout.record()) == layout
    again: Any = layout.around(made.to_local(), meshes_of([torch.ones(1), made]))
    assert again.placements == made.placements and again.device_mesh == mesh
    assert again.shape == (4, 6) and torch.equal(again.to_local(), made.to_local())


def test_placements_are_types(mesh: Any) -> None:
    made = DTensor.from_local(torch.ones(2), mesh, [Partial(), Replicate()], run_check=False)
    layout = layout_of("w", made)
    assert layout is not None and layout.placements == ("P(sum)", "R")
    assert {k: str(v) for k, v in types_of_layout(layout).items()} == {"dp": "P", "tp": "I"}
    assert layout_of("w", torch.ones(2)) is None


def test_an_uneven_one_is_refused(mesh: Any) -> None:
    with pytest.raises(CaptureError, match="dimension 0 of 5 in 2 parts"):
        layout_of("model.w", divided(mesh, Replicate(), Shard(0), shape=(5, 6)))


def test_axes_without_names_are_refused(mesh: Any) -> None:
    other = init_device_mesh("cpu", (1, 4))
    made = DTensor.from_local(torch.ones(2), other, [Replicate(), Replicate()], run_check=False)
    with pytest.raises(CaptureError, match=r"model\.w is a DTensor that no program takes"):
        layout_of("model.w", made)


def test_a_mesh_that_is_not_here_is_told() -> None:
    layout = Layout(("tp",), ("R",), (2,), (1,))
    with pytest.raises(ContractError, match="the program gives a DTensor over tp"):
        layout.around(torch.ones(2), {})
    with pytest.raises(ContractError, match="'X' is no placement"):
        Layout(("tp",), ("X",), (2,), (1,)).around(torch.ones(2), {("tp",): None})


class World:
    """Two ranks along tp."""

    mesh = {"tp": 2}

    class Rank:
        def __init__(self, place: int) -> None:
            self.coordinate = {"tp": place}

    ranks = [Rank(0), Rank(1)]

    def group(self, rank: int, axis: str) -> list[int]:
        return [0, 1]


@pytest.mark.parametrize(
    ("how", "as_wanted", "got"),
    [
        ("P(sum)", "R", [[3, 3], [3, 3]]),
        ("P(avg)", "R", [[1.5, 1.5], [1.5, 1.5]]),
        ("P(sum)", "S(0)", [[3], [3]]),
        ("R", "S(0)", [[1], [2]]),
    ],
)
def test_gradients_are_brought_to_their_parameters_layout(how: str, as_wanted: str, got: Any):
    held = [torch.tensor([1.0, 1.0]), torch.tensor([2.0, 2.0])]
    layouts = [Layout(("tp",), (text,), (2,), (1,)) for text in (how, as_wanted)]
    assert [value.tolist() for value in relaid(World(), held, *layouts)] == got
