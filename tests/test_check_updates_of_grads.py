"""Steps that differentiate again, or change gradients on their way: the twin decides for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import lockstep as ls
from lockstep.checker.finding import Report


def make(mesh: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return model, torch.randn(8, 4).chunk(mesh.size())[mesh.get_rank()]


def report(step: Callable[..., Any]) -> Report:
    return ls.check(step, make, mesh={"dp": 2}, data="dp", repair_s=0)


def codes(step: Callable[..., Any]) -> list[str]:
    return [finding.code for finding in report(step).findings]


def taken(model: nn.Module, loss: torch.Tensor, reduce: bool = True) -> torch.Tensor:
    loss = ls.loss(loss, dp="mean")
    loss.backward()
    if reduce:
        ls.reduce_grads(model, dp="mean")
    return loss


def penalized(reduce: bool) -> Callable[..., Any]:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return taken(model, model(x).square().mean() + slope.square().mean(), reduce)

    return step


def stepping(reduce: bool) -> Callable[..., Any]:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for number, part in enumerate(x.chunk(2)):
            loss = taken(model, model(part).square().mean(), reduce or number > 0)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
        return loss

    return step


@pytest.mark.parametrize("of", [penalized, stepping])
def test_a_step_that_differentiates_again_passes_without_true_gradients(of: Callable[..., Any]):
    found = report(of(True))
    assert found.ok, str(found)
    assert "differentiates again" in "\n".join(found.established)


def test_a_penalty_whose_gradients_are_not_reduced_is_found():
    assert codes(penalized(False))


def test_copies_that_an_update_sets_apart_are_found_without_true_gradients():
    assert codes(stepping(False)) == ["LS550"]


def changing(change: Callable[..., Any], reduce: bool = True) -> Callable[..., Any]:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = taken(model, model(x).square().mean(), reduce)
        change(model)
        return loss

    return step


def decay(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.add_(parameter.detach(), alpha=0.01)


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def divide(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.div_(dist.get_world_size())


@pytest.mark.parametrize("change", [decay, clip])
def test_what_is_done_to_whole_gradients_on_every_mesh_alike_is_no_fault(change: Any):
    assert report(changing(change)).ok
    assert codes(changing(change, reduce=False))


def test_a_factor_of_the_mesh_in_what_is_done_to_gradients_is_found():
    assert codes(changing(divide)) == ["LS551"]


def apart(reduce: bool) -> Callable[..., Any]:
    def step(model: nn.Module, x: torch.Tensor) -> Any:
        hidden = model[0](x).tanh()
        first = ls.loss(hidden.square().mean(), dp="mean")
        last = ls.loss(model[2](hidden).square().mean(), dp="mean")
        first.backward(inputs=list(model[0].parameters()), retain_graph=True)
        last.backward(inputs=list(model[2].parameters()))
        ls.reduce_grads(model if reduce else model[2], dp="mean")
        return first, last

    return step


def test_losses_that_each_serve_their_own_parameters_are_no_wrong_backward():
    assert report(apart(True)).ok
    assert codes(apart(False))


def returning(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    loss = ls.loss(model(x).square().mean(), dp="mean")
    return [grad / 2 for grad in torch.autograd.grad(loss, list(model.parameters()))]


def forgetting(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = taken(model, model(x).square().mean())
    model[0].weight.grad = None
    return loss


def test_returned_gradients_are_left_open_and_one_that_is_lost_is_found():
    found = report(returning)
    assert found.ok and any("sets no .grad" in line for line in found.undecided), str(found)
    assert codes(forgetting) == ["LS551"]


def begun(mesh: Any) -> tuple[nn.Module, torch.Tensor]:
    model, x = make(mesh)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    return model, x


@pytest.mark.parametrize("reduce", [True, False])
def test_gradients_from_before_the_step_are_no_fault(reduce: bool):
    step = changing(lambda model: None, reduce)
    assert ls.check(step, begun, mesh={"dp": 2}, data="dp", repair_s=0).ok == reduce
