"""What a step writes into objects that its modules hold: seen, put back, refused at its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.capture.capture import capture
from lockstep.capture.written import PlainValues, held_objects, noting_writes
from lockstep.errors import CaptureError


class Config:
    """A package's configuration."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.seen = [1]
        self._hidden = 0


class Layer(torch.nn.Module):
    """A layer that fills its configuration in as it runs."""

    def __init__(self, config: Config, fills: bool = True) -> None:
        super().__init__()
        self.config, self.fills = config, fills

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fills and self.config.problem is None:
            self.config.problem = "regression"  # the line
        self.config._hidden += 1
        return x * 2


def step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def test_a_written_configuration_is_put_back_and_refused_at_its_line() -> None:
    config = Config()
    model = torch.nn.Sequential(Layer(config), Layer(config))
    with pytest.raises(CaptureError) as caught:
        capture(step, model, torch.ones(3))
    assert caught.value.what == "the step changes Python state: model.0.config.problem"
    lines = Path(__file__).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.endswith("# the line"))
    assert caught.value.where == f"tests/test_written.py:{number}"
    assert caught.value.got == "None -> 'regression'"
    assert config.problem is None and "__setattr__" not in vars(Config)


def test_one_that_is_filled_in_before_is_captured() -> None:
    config = Config()
    config.problem = "regression"
    assert capture(step, Layer(config), torch.ones(3)).gm is not None
    assert capture(step, Layer(Config(), fills=False), torch.ones(3)).gm is not None


def test_objects_are_those_of_somebody_and_each_is_held_once() -> None:
    config, model = Config(), torch.nn.Linear(2, 2)
    first, second = Layer(config), Layer(config)
    second.config, second.other = config, model  # type: ignore[assignment]
    second.dtype, second.call = torch.float32, len  # type: ignore[assignment]
    found = list(held_objects([("a", first), ("b", second)]))
    assert found == [("a.config", config)]


def test_plain_values_are_the_public_ones() -> None:
    config = Config()
    values = PlainValues(config)
    assert list(values) == ["problem"]
    values["problem"] = "other"
    assert config.problem == values["problem"] == "other"
    del values["problem"]
    assert "problem" not in values


def test_only_known_objects_are_noted_and_the_class_is_as_before() -> None:
    class Own(Config):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)

    before, one, other = vars(Own)["__setattr__"], Own(), Own()
    with noting_writes([one]) as lines:
        one.problem = other.problem = "x"
    assert [name for _, name in lines] == ["problem"] and one.problem == "x"
    assert vars(Own)["__setattr__"] is before


def test_a_class_that_cannot_be_changed_has_no_lines() -> None:
    with noting_writes([3]) as lines:
        pass
    assert lines == {}
