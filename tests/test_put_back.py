"""What a call may change is put back to the bit, and by identity, one case for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lockstep.capture.binding import Step
from lockstep.capture.state import collect
from lockstep.run.outcome import differing, outcome
from lockstep.run.put_back import Kept


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("wide", torch.zeros(1).expand(3))
        self.seen: list[int] = []
        self.last = torch.zeros(2)


def step(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    """Reached for its arguments alone."""


def replaced_buffer(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    model.mean = torch.ones(2)


def new_attribute(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    model.cache = torch.ones(2)


def no_attribute(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    del model.last


def appended(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    model.seen.append(1)


def written(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    with torch.no_grad():
        model.linear.weight.fill_(7)
        model.mean.add_(1)
        x.zero_()


def trained(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    model.linear(x).sum().backward()
    optimizer.step()


def accumulated(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    model.linear.bias.grad.add_(1)


def emptied(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.zero_grad()


def scheduled(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    optimizer.param_groups[0]["lr"] = 5.0


def drawn(model: Model, optimizer: Any, x: torch.Tensor) -> None:
    torch.rand(3)


CHANGES = [
    replaced_buffer, new_attribute, no_attribute, appended, written, trained, accumulated, emptied,
    scheduled, drawn,
]  # fmt: skip


def picture(model: Model, optimizer: Any, x: torch.Tensor) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), model.linear.bias.grad, x]
    found: list[Any] = [(id(t), t.detach().tolist()) for t in tensors if t is not None]
    found += [sorted(vars(model)), list(model.seen), id(getattr(model, "last", None))]
    state = optimizer.state_dict()
    found += [str(state), id(optimizer.state), torch.get_rng_state().tolist()]
    return [*found, [p.grad is None for p in model.parameters()]]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_put_back(change: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model.linear.bias.grad = torch.ones(2)
    args = (model, optimizer, torch.ones(1, 2))
    call = Step(step).call(args, {})
    state = collect(call)
    kept, before = Kept(Step(step), call, state), picture(*args)
    change(*args)
    assert picture(*args) != before, "the case changes something"
    kept.put_back()
    assert picture(*args) == before
    change(*args)
    kept.put_back()
    assert picture(*args) == before, "and once more"


def test_what_was_kept_for_a_backward_of_the_callers_is_still_good() -> None:
    model, x = Model(), torch.ones(1, 2)
    call = Step(lambda model, x: None).call((model, x), {})
    loss = model.linear(x).square().sum()
    kept = Kept(Step(lambda model, x: None), call, collect(call))
    kept.put_back()
    loss.backward()
    assert model.linear.weight.grad is not None


def test_an_outcome_names_gradients_first_in_the_order_of_the_model() -> None:
    model = Model()
    call = Step(lambda model, x: None).call((model, torch.ones(1, 2)), {})
    state = collect(call)
    before = outcome((torch.ones(1), 2, None), call, state)
    assert differing(before, outcome((torch.ones(1), 2, None), call, state)) == []
    with torch.no_grad():
        model.mean.add_(1)
    model.linear(torch.ones(1, 2)).sum().backward()
    after = outcome((torch.ones(1), 3, None), call, state)
    names = ["model.linear.weight.grad", "model.linear.bias.grad", "output 1", "model.mean"]
    assert differing(before, after) == names
