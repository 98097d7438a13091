"""FSDP2 in a captured step: its gradients are the derivative, and what was cut is not kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.capture.origin import META
from lockstep.capture.wrapped import shards
from lockstep.errors import CaptureError


def made(mesh: Any, **options: Any) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, *torch.randn(2, 3, 4).unbind(0)


def step(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    model.set_requires_gradient_sync(False)
    ls.loss(model(x).square().mean() / 2, dp="mean").backward()
    model.set_requires_gradient_sync(True)
    loss = ls.loss(model(y).square().mean() / 2, dp="mean")
    loss.backward()
    optimizer.step()
    return loss


def test_its_gradients_are_the_derivative() -> None:
    report = ls.check(step, made, mesh={"dp": 2}, data="dp")
    assert report.ok, str(report)
    assert "gradients: 4 of 4 parameters' are the derivative" in report.established


def test_a_reduction_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(group: Any, grads: list[Tensor], before: Any, op: Any) -> Tensor:
        return torch.cat([grad.reshape(2, -1) for grad in grads], 1)[0]

    monkeypatch.setattr(shards.Group, "_scattered", own)
    report = ls.check(step, made, mesh={"dp": 2}, data="dp", repair_s=0)
    assert [found.code for found in report.findings] == ["LS539"], str(report)


@pytest.mark.parametrize("reshards", [True, False])
def test_what_is_cut_after_the_forward_is_not_kept(reshards: bool) -> None:
    """The backward reads what it gathers itself; where nothing is cut, it reads the forward's."""
    call = made(ls.mesh("cpu", dp=1), reshard_after_forward=reshards)
    graph = capture(step, *call)
    inputs = [node for node in graph.gm.graph.nodes if node.op == "placeholder"]
    weights = [n for n, s in zip(inputs, graph.inputs, strict=True) if s.name.endswith("weight")]
    copies = [user for node in weights for user in node.users if "clone" in str(user.target)]
    assert {node.meta[META].phase for node in copies} == {"forward", *["backward"] * reshards}
    phases = [_phases(node) for node in copies if node.meta[META].phase == "forward"]
    assert len(phases) == 4
    second = {"backward"} if not reshards else set()  # the first layer's input needs no gradient
    assert phases == [{"forward"}, {"forward"}, {"forward"} | second, {"forward"} | second]


def _phases(node: torch.fx.Node) -> set[str]:
    """The phases in which a value, or a view of it, is read."""
    views = ("aten.t.", "aten.alias", "aten.detach", "aten.view")
    found = set()
    for user in node.users:
        found.add(user.meta[META].phase)
        if any(name in str(user.target) for name in views):
            found |= _phases(user)
    return found


def test_the_switches_are_as_before_a_refused_capture() -> None:
    model, optimizer, x, y = made(ls.mesh("cpu", dp=1))

    def left_on(model: Any, x: Tensor) -> None:
        model.set_requires_gradient_sync(False)
        ls.loss(model(x).square().mean(), dp="mean").backward()

    with pytest.raises(CaptureError, match="LS514: gradients are not reduced when the step ends"):
        capture(left_on, model, x)
    assert capture(step, model, optimizer, x, y).switched == {}
    assert all(p.placements[0].is_shard(0) for p in model.parameters())


def test_what_the_step_sets_is_handed_on() -> None:
    model, optimizer, x, y = made(ls.mesh("cpu", dp=1))

    def sums(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
        for module in (model, model[0], model[2]):
            module.set_force_sum_reduction_for_comms(True)
        return step(model, optimizer, x, y)

    graph = capture(sums, model, optimizer, x, y)
    assert set(graph.switched) == {"model.0", "model.2"}
    assert capture(sums, model, optimizer, x, y).switched == graph.switched
