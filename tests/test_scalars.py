"""A weight that is read at each call stays one in what the compiler gets, with eager's bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.build.backends import lower
from lockstep.build.scalars import lift_weights
from lockstep.capture.capture import capture
from lockstep.errors import LoweringError

X, Y = torch.randn(2, 64)


def plain(x: torch.Tensor, y: torch.Tensor, weight: float) -> torch.Tensor:
    return x.lerp(y, weight)


def in_place(x: torch.Tensor, y: torch.Tensor, weight: float) -> torch.Tensor:
    x.lerp_(y, weight)
    return x + 0


def foreach(x: torch.Tensor, y: torch.Tensor, weight: float) -> torch.Tensor:
    torch._foreach_lerp_([x, y], [y, x], weight)
    return x + y


@pytest.mark.parametrize("weight", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step", [plain, in_place, foreach])
def test_lifted_weights_give_the_bits_of_eager(step: Any, dtype: Any, weight: float) -> None:
    x, y = X.to(dtype), Y.to(dtype)
    graph = capture(step, x, y, 0.3)
    lift_weights(graph.gm)
    assert "lerp.Scalar" not in graph.gm.code and "lerp_.Scalar" not in graph.gm.code
    want = step(x.clone(), y.clone(), weight)
    with torch.no_grad():
        (got,) = graph.gm(x.clone(), y.clone(), torch.tensor(weight, dtype=torch.float64))
    assert torch.equal(got, want)


def test_a_weight_that_is_known_is_left_alone() -> None:
    graph = capture(lambda x, y: x.lerp(y, 0.25), X, Y)
    before = graph.gm.code
    lift_weights(graph.gm)
    assert graph.gm.code == before


def test_the_compiler_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without lifting, the compiler refuses to choose a formula."""
    graph = capture(plain, X, Y, 0.3)
    monkeypatch.setattr("lockstep.build.inductor_backend.lift_weights", lambda gm: None)
    with pytest.raises(LoweringError, match="data-dependent"):
        lower(graph, "inductor")


def test_an_optimizer_inside_compiles() -> None:
    def step(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    model = torch.nn.Linear(3, 3, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    program = lower(capture(step, model, optimizer, torch.randn(2, 3)), "inductor")
    assert program.kernels and "aten.lerp" not in program.text
