"""A value or function that the step reads, changed between two calls, is another program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep as ls

FACTOR = [1.0]


def helper(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()


class Net(torch.nn.Module):
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(helper(self.layer(x))) * self.gain * FACTOR[0]

    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def make() -> tuple[Callable[..., Any], dict[str, Callable[[Any], None]]]:
    """A step that closes over a number and a list, and what changes them."""
    scale, powers = 1.0, [1]

    def step(model: Net, x: torch.Tensor) -> torch.Tensor:
        return sum((model(x) ** power for power in powers), torch.zeros(())) * scale

    def set_scale(value: float) -> None:
        nonlocal scale
        scale = value

    def set_powers(value: list[int]) -> None:
        powers[:] = value

    return step, {"scale": set_scale, "powers": set_powers}


CHANGES: dict[str, tuple[Callable[[Any], None] | None, Any, Any]] = {
    "scale": (None, 2.0, 1.0),
    "powers": (None, [1, 2], [1]),
    "class attribute": (lambda v: setattr(Net, "gain", v), 2.0, 1.0),
    "method": (lambda v: setattr(Net, "mix", v), lambda self, x: x - 1, Net.mix),
    "global list": (lambda v: FACTOR.__setitem__(0, v), 3.0, 1.0),
    "global function": (lambda v: globals().update(helper=v), other_helper, helper),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed(name: str, tmp_path: Path) -> None:
    step, setters = make()
    change, new, old = CHANGES[name]
    change = change or setters[name]
    compiled = ls.compile(step, backend="graph", store=tmp_path / "store")
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 3)
    first = compiled(model, x)
    assert torch.equal(first, step(model, x))
    change(new)
    try:
        want = step(model, x)
        assert not torch.equal(want, first)
        assert torch.equal(compiled(model, x), want)
    finally:
        change(old)
    assert torch.equal(compiled(model, x), first)
    assert len(list((tmp_path / "store").glob("*.lockstep"))) == 2


@pytest.mark.parametrize("holder", ["parameter", "buffer", "argument"])
def test_an_attribute_of_a_tensor_is_another_program_in_this_start_and_the_next(
    holder: str, tmp_path: Path
) -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        gains = [getattr(t, "gain", 1) for t in (model.weight, model.kept, x)]  # type: ignore[union-attr]
        return model(x) * gains[0] * gains[1] * gains[2]

    model = torch.nn.Linear(3, 3)
    model.register_buffer("kept", torch.ones(1))

    def result(compiled: Callable[..., Any], gain: int) -> None:
        x = torch.ones(2, 3)
        held: dict[str, Any] = {"parameter": model.weight, "buffer": model.kept, "argument": x}
        held[holder].gain = gain
        assert torch.equal(compiled(model, x), step(model, x))

    first = ls.compile(step, backend="graph", store=tmp_path)
    result(first, 2)
    result(first, 3)
    result(first, 2)
    assert len(list(tmp_path.glob("*.lockstep"))) == 2
    result(ls.compile(step, backend="graph", store=tmp_path), 4)  # from the store nothing fits
    assert len(list(tmp_path.glob("*.lockstep"))) == 3
