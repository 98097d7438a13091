"""Gradients that are written as a list are judged one by one, captured and live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls


def scaled(gradients: list[torch.Tensor]) -> None:
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    torch._foreach_mul_(gradients, 0.01 / norm)


def training(reduced: bool, live: bool, clip: Callable[[nn.Module], Any]) -> Any:
    """A data-parallel step that clips; live ones look at a value."""

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(x).square().mean(), dp="mean")
        loss.backward()
        if live:
            assert loss.item() >= 0
        if reduced:
            ls.reduce_grads(model, dp="mean")
        clip(model)
        return loss

    return step


def make(mesh: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.randn(6, 4).chunk(mesh.size())[mesh.get_local_rank()]


CLIPS = {
    "torch's own": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01),
    "a list": lambda model: scaled([p.grad for p in model.parameters()]),
}


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("clip", CLIPS)
def test_a_list_of_gradients_is_clipped_by_one_norm(clip, live):
    def check(reduced: bool) -> Any:
        step = training(reduced, live, CLIPS[clip])
        return ls.check(step, make, mesh={"dp": 2}, data="dp", repair_s=0)

    right = check(True)
    assert right.ok and bool(right.live) is live, right
    assert "gradients: 4 of 4 parameters' are the derivative" in str(right)
    wrong = check(False)
    assert [finding.code for finding in wrong.findings] == ["LS553"]


def test_a_list_that_is_averaged_again_is_found():
    def averaged(model: nn.Module) -> None:
        torch._foreach_mul_([p.grad for p in model.parameters()], 1 / dist.get_world_size())

    report = ls.check(training(True, False, averaged), make, mesh={"dp": 2}, data="dp", repair_s=0)
    assert report.findings and report.unknown_ops == {}


def test_a_list_that_is_scaled_alike_on_every_mesh_is_the_users_own():
    def halved(model: nn.Module) -> None:
        torch._foreach_mul_([p.grad for p in model.parameters()], 0.5)

    report = ls.check(training(True, False, halved), make, mesh={"dp": 2}, data="dp", repair_s=0)
    assert report.ok, report
