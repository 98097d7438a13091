"""What a step is given and keeps: told apart in every artifact, or refused by name."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lockstep as ls


class Kind(enum.Enum):
    ADD = 1
    SUB = 2


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def also(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.factor


X = torch.arange(6.0).reshape(1, 3, 2, 1) + 1
TWO, THREE = (lambda x: x * 2), (lambda x: x * 3)  # one line on purpose: it is the source of both
TOLD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "complex": (lambda x, v: x * v, (1j, 2j)),
    "bytes": (lambda x, v: x * len(v), (b"a", b"ab")),
    "slice": (lambda x, v: x[:, v], (slice(0, 1), slice(1, 3), ...)),
    "range": (lambda x, v: sum(x * i for i in v), (range(2), range(3))),
    "set": (lambda x, v: x * len(v), ({1}, {1, 2})),
    "enum": (lambda x, v: x + 1 if v is Kind.ADD else x - 1, tuple(Kind)),
    "lambda": (lambda x, v: v(x), (TWO, THREE)),
    "callable object": (lambda x, v: v(x), (Scale(2.0), Scale(3.0))),
    "bound method": (lambda x, v: v(x), (Scale(2.0).also, Scale(3.0).also)),
    "format": (
        lambda x, v: x.contiguous(memory_format=v),
        (torch.channels_last, torch.contiguous_format),
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_two_values_are_two_artifacts(name: str, tmp_path: Path) -> None:
    step, values = TOLD[name]
    compiled = ls.compile(step, backend="graph", store=tmp_path)
    wants = [step(X, value) for value in values]
    for value, want in zip(values, wants, strict=True):
        got = compiled(X, value)
        assert torch.equal(got, want) and got.stride() == want.stride()
    assert len(list(tmp_path.glob("*.lockstep"))) == len(values)


def test_a_set_that_grew_is_another_value(tmp_path: Path) -> None:
    seen = {1}
    step = ls.compile(lambda x, v: x * len(v), backend="graph", store=tmp_path)
    assert torch.equal(step(X, seen), X)
    seen.add(2)
    assert torch.equal(step(X, seen), X * 2)


def test_a_default_that_changed_is_another_value(tmp_path: Path) -> None:
    kept = {"factor": 2.0}

    def helper(x: torch.Tensor, *, options: Any = kept) -> torch.Tensor:
        return x * options["factor"]

    def outer(x: torch.Tensor, options: Any = kept) -> torch.Tensor:
        return helper(x) * options["factor"]

    step = ls.compile(outer, backend="graph", store=tmp_path)
    assert torch.equal(step(X), X * 4)
    kept["factor"] = 3.0
    assert torch.equal(step(X), X * 9)


def keeps(x: torch.Tensor, cache: list[int] = []) -> torch.Tensor:  # noqa: B006
    cache.append(1)
    return x * len(cache)


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


def leaves_gradient(x: torch.Tensor) -> None:
    x.square().sum().backward()


def swaps(model: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    model.weight.data = model.weight.data * 2
    return model(x)


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], str]] = {
    "array": (lambda x: x, lambda: (np.ones(3),), "x is a numpy.ndarray, which holds what"),
    "iterator": (lambda it: next(it), lambda: (iter([X]),), "it is a builtins.list_iterator"),
    "default": (keeps, lambda: (X,), "the step changes Python state: cache"),
    "numpy draw": (draws, lambda: (X,), "the step changes Python state: numpy.random"),
    "gradient": (
        leaves_gradient,
        lambda: (torch.ones(2, requires_grad=True),),
        "the step leaves a gradient in its argument x",
    ),
    "data": (
        swaps,
        lambda: (torch.nn.Linear(2, 2), torch.ones(2)),
        "the step gives model.weight other memory",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_left_as_it_was(name: str, tmp_path: Path) -> None:
    step, arguments, text = REFUSED[name]
    before = np.random.get_state()[1].tolist()
    with pytest.raises(ls.LockstepError, match=text):
        ls.compile(step, backend="graph", store=tmp_path)(*arguments())
    assert np.random.get_state()[1].tolist() == before
    assert keeps.__defaults__ == ([],)
