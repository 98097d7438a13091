"""What leads to a tensor is replaced between two calls, as loading a checkpoint does.

The step goes on with what is there now. Each change is held to the same run without Lockstep, and
matters: without the change the numbers are others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep as ls

nn = torch.nn


def train_step(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.zero_grad()
    return loss


def make_sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1, momentum=0.5)


def make_adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.1)


def swap_child(model: Any, optimizer: Any) -> None:
    model[1] = nn.Linear(5, 2)
    optimizer.param_groups[0]["params"] = list(model.parameters())


def load_optimizer(model: Any, optimizer: Any) -> None:
    saved = copy.deepcopy(optimizer.state_dict())
    for entry in saved["state"].values():
        entry[next(key for key in entry if key != "step")].fill_(0.25)
    optimizer.load_state_dict(saved)


def load_then_schedule(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.5


def load_then_decay(model: Any, optimizer: Any) -> None:
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["weight_decay"] = 0.5


def drop_parameter(model: Any, optimizer: Any) -> None:
    del optimizer.param_groups[0]["params"][0]


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "child module": swap_child,
    "activation": lambda model, _: model.__setitem__(2, nn.Tanh()),
    "optimizer's state loaded": load_optimizer,
    "optimizer's state cleared": lambda _, optimizer: optimizer.state.clear(),
    "loaded, then the rate set": load_then_schedule,
    "loaded, then the decay set": load_then_decay,
    "a parameter leaves its group": drop_parameter,
    "a whole rate becomes another": lambda _, o: o.param_groups[0].update(lr=2),
    "a whole rate becomes a fraction": lambda _, o: o.param_groups[0].update(lr=0.5),
    "a frozen parameter is freed": lambda model, _: model[0].requires_grad_(True),
}


def run(step: Callable[..., Any], make: Any, change: Callable[[Any, Any], object]) -> list[Any]:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.ReLU())
    model[0].requires_grad_(change is not CHANGES["a frozen parameter is freed"])
    optimizer, x = make(model.parameters()), torch.randn(4, 3)
    seen = [step(model, optimizer, x).detach() for _ in range(2)]
    change(model, optimizer)
    seen += [step(model, optimizer, x).detach() for _ in range(3)]
    return [*seen, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("make", [make_sgd, make_adam])
@pytest.mark.parametrize("name", CHANGES)
def test_goes_on_with_what_is_there_now(name: str, make: Any, tmp_path: Path) -> None:
    compiled = ls.compile(train_step, backend="graph", store=tmp_path)
    want = run(train_step, make, CHANGES[name])
    got = run(compiled, make, CHANGES[name])
    assert all(map(torch.equal, got, want))
    idle = run(train_step, make, lambda *_: None)
    assert not all(map(torch.equal, idle, want))


class Box:
    def __init__(self) -> None:
        self.weight = torch.randn(3)


def test_another_object_is_not_taken_for_the_first(tmp_path: Path) -> None:
    step = ls.compile(lambda box, x: box.weight * x, backend="graph", store=tmp_path)
    first, second, x = Box(), Box(), torch.ones(3)
    for box in (first, second, first):
        assert torch.equal(step(box, x), box.weight)
