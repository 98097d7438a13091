"""A module has no loss: along the axes of data its gradients are for others to add up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lockstep as ls

MESH = {"dp": 2}


def batch(_: Any) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_a_bare_module_passes_and_says_what_is_left() -> None:
    report = ls.check(nn.Linear(4, 4), batch, mesh=MESH, data="dp")
    assert report.ok, str(report)
    assert "pending: sum over dp" in str(report)


@pytest.mark.parametrize("said", [False, True])
def test_so_it_does_by_shape(said: bool) -> None:
    def make(mesh: Any) -> Any:
        model = nn.Linear(4, 4)
        if said:
            ls.type_parameters(model, {"*": {"dp": ls.R}})
        return model, batch(mesh)

    report = ls.check(
        lambda model, x: model(x), make, mesh=MESH, data="dp", witnesses="types", repair_s=0
    )
    assert report.ok, str(report)


def test_one_that_adds_them_up_itself_passes_too() -> None:
    model = nn.Linear(4, 4, bias=False)

    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        weight = ls.convert(model.weight, "dp", src=ls.I, dst=ls.R)
        return ls.all_reduce((x @ weight.t()).sum(), "dp", src=ls.P, dst=ls.I)

    report = ls.check(step, lambda mesh: (model, batch(mesh)), mesh=MESH, data="dp")
    assert report.ok, str(report)
    assert "pending" not in str(report)


def test_a_step_with_a_loss_of_its_own_still_has_to() -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(x).mean(), dp="mean")
        loss.backward()
        return loss

    def make(mesh: Any) -> Any:
        return nn.Linear(4, 4), batch(mesh)

    report = ls.check(step, make, mesh=MESH, data="dp", repair_s=0)
    assert [finding.code for finding in report.findings] == ["LS514"]
