"""Mesh axes: sizes that fit, names that stand for one set of ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import lockstep as ls
from lockstep.errors import UsageError
from lockstep.spmd.mesh import SIZES, _fit, apart, axis, axis_of, register


@pytest.fixture(autouse=True)
def no_axes_yet() -> Iterator[None]:
    """The axes that other files' meshes have registered are put aside."""
    with apart():
        yield


@pytest.mark.parametrize(
    ("sizes", "world", "want"),
    [
        ({"dp": -1}, 8, {"dp": 8}),
        ({"dp": -1, "tp": 2}, 8, {"dp": 4, "tp": 2}),
        ({"dp": 2, "tp": 2}, 4, {"dp": 2, "tp": 2}),
    ],
)
def test_sizes_are_filled_in(sizes: dict[str, int], world: int, want: dict[str, int]) -> None:
    assert _fit(sizes, world) == want


@pytest.mark.parametrize(
    ("sizes", "world", "text"),
    [
        ({"dp": 3}, 4, "the mesh dp=3 does not fit the job"),
        ({"dp": -1, "tp": 3}, 4, "the fixed axes need a multiple of 3"),
        ({"dp": -1, "tp": -1}, 4, "at most one of them -1"),
        ({}, 4, "a mesh needs an axis"),
        ({"dp": 0}, 4, "mesh axis dp cannot have 0 ranks"),
        ({"dp": "2"}, 4, "mesh axis dp cannot have '2' ranks"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], world: int, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        _fit(sizes, world)


def test_sizes_given_by_a_command_name_its_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SIZES, "dp=3")
    with pytest.raises(UsageError, match="the mesh dp=3 x tp=2 does not fit the job") as caught:
        _fit({"dp": 3, "tp": 2}, 3)
    assert caught.value.fixes == ["--world-size 6, or --mesh with the sizes of all axes"]


def test_axes_are_known_by_name_and_by_group() -> None:
    mesh = ls.mesh(dp=-1)
    assert axis("dp").ranks == (0,) and axis("dp").size == 1
    for group in (mesh.get_group("dp"), None, dist.group.WORLD, "dp", mesh.get_group().group_name):
        found = axis_of(group)
        assert found is not None and found.name == "dp"
    theirs = axis_of(dist.new_group([0]))  # as a library makes groups for itself
    assert theirs is not None and theirs.name == "dp"
    assert axis_of(dist.new_group([0], backend="cpu:gloo")) is None  # not the mesh's backend
    with pytest.raises(UsageError, match="there is no mesh axis nowhere"):
        axis("nowhere")


def test_a_mesh_without_names_is_refused() -> None:
    ls.mesh(dp=-1)
    with pytest.raises(UsageError, match="no names for its dimensions"):
        register(init_device_mesh("cpu", (1,)))


def test_loss_and_reduce_grads_check_their_words() -> None:
    ls.mesh(dp=-1)
    value = torch.tensor(1.0)
    assert ls.loss(value, dp="mean") is value
    with pytest.raises(UsageError, match="dp='median'"):
        ls.loss(value, dp="median")
    with pytest.raises(UsageError, match="no mesh axis pp"):
        ls.loss(value, pp="mean")
    with pytest.raises(UsageError, match="a loss has one element"):
        ls.loss(torch.ones(2), dp="mean")
    with pytest.raises(UsageError, match="needs an axis"):
        ls.reduce_grads(torch.nn.Linear(1, 1))


def test_reduce_grads_means_and_sums() -> None:
    ls.mesh(dp=-1)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).backward()
    model.bias.grad = None
    ls.reduce_grads(model, dp="sum")
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[1, 1]]
    assert model.bias.grad is None
