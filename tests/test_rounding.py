"""What rounding explains of a difference, and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lockstep.run.outcome import Values
from lockstep.run.rounding import MOST, Jitter, beyond

ROWS, WIDE = 8, 32


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, 64), nn.GELU(), nn.Linear(64, WIDE), nn.LayerNorm(WIDE))


def left(dtype: torch.dtype, forward: Callable[[nn.Sequential, Tensor], Tensor]) -> Values:
    """The loss and the gradients of a step in a type."""
    model = net().to(dtype)
    x = torch.randn(ROWS, WIDE, generator=torch.Generator().manual_seed(1)).to(dtype)
    loss = forward(model, x).square().mean()
    loss.backward()
    grads = {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {**grads, "output 0": loss.detach()}


def plain(model: nn.Sequential, x: Tensor) -> Tensor:
    return model(x).softmax(-1)


def otherwise(model: nn.Sequential, x: Tensor) -> Tensor:
    """The same, written in other operators."""
    up, act, down, norm = model
    h = act(torch.einsum("bi,oi->bo", x, up.weight) + up.bias)
    h = h[:, :32] @ down.weight[:, :32].T + h[:, 32:] @ down.weight[:, 32:].T + down.bias
    h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    h = h * norm.weight + norm.bias
    return (h - h.logsumexp(-1, keepdim=True)).exp()


def scaled(model: nn.Sequential, x: Tensor) -> Tensor:
    return plain(model, x) * 2


def moved(dtype: torch.dtype) -> tuple[Values, float]:
    with Jitter() as jitter:
        found = left(dtype, plain)
    return found, jitter.eps


TYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)


@TYPES
def test_other_operators_that_compute_the_same_are_within_rounding(dtype: torch.dtype) -> None:
    step, graph = left(dtype, plain), left(dtype, otherwise)
    assert any(not torch.equal(step[name], graph[name]) for name in step)
    names, times = beyond(step, graph, *moved(dtype))
    assert names == [] and 0 < times < MOST


@TYPES
def test_a_factor_and_a_lost_term_are_beyond_it(dtype: torch.dtype) -> None:
    step = left(dtype, plain)
    names, times = beyond(step, left(dtype, scaled), *moved(dtype))
    assert names == list(step) and times > MOST
    lost = {**step, "0.bias.grad": step["0.bias.grad"] * 0.5}
    assert beyond(step, lost, *moved(dtype))[0] == ["0.bias.grad"]


def test_a_small_error_is_seen_in_a_wide_type_alone() -> None:
    def off(dtype: torch.dtype) -> list[str]:
        step = left(dtype, plain)
        decayed = {**step, "0.weight.grad": step["0.weight.grad"] * (1 + 1e-4)}
        return beyond(step, decayed, *moved(dtype))[0]

    assert off(torch.float32) == ["0.weight.grad"] and off(torch.bfloat16) == []


def test_a_type_a_shape_a_whole_number_and_what_is_not_there_are_never_rounding() -> None:
    step = {"a.grad": torch.ones(2), "n": torch.tensor(3), "b.grad": torch.ones(2)}
    graph = {"a.grad": torch.ones(1, 2), "n": torch.tensor(4), "c": torch.ones(2)}
    assert beyond(step, graph, step, 1.0)[0] == ["a.grad", "b.grad", "n", "c"]
    assert beyond(step, {**step, "a.grad": torch.ones(2).double()}, step, 1.0)[0] == ["a.grad"]
    nan = {"a.grad": torch.tensor([float("nan"), 1.0])}
    assert beyond(nan, nan, nan, 1e-7)[0] == []
    assert beyond({"a.grad": torch.ones(2)}, nan, nan, 1e-7)[0] == ["a.grad"]


def test_a_step_that_magnifies_rounding_does_not_hide_all() -> None:
    """What rounding moves by as much as it is large says nothing; all gradients together do."""
    step = {"a.grad": torch.ones(4), "b.grad": torch.full((4,), 1e-6)}
    chaos = {"a.grad": torch.zeros(4), "b.grad": torch.zeros(4)}
    assert beyond(step, {**step, "b.grad": -step["b.grad"]}, chaos, 1e-7)[0] == []
    assert beyond(step, {**step, "a.grad": step["a.grad"] * 2}, chaos, 1e-7)[0] == ["a.grad"]


def test_what_picks_values_stays_finite_and_draws_are_left_alone() -> None:
    torch.manual_seed(0)
    drawn, after = torch.rand(3), torch.rand(())
    torch.manual_seed(0)
    with Jitter():
        assert torch.equal(torch.rand(3), drawn)
        x = torch.tensor([1.0, 3.0, 3.0]).requires_grad_()
        mask = torch.zeros(3).masked_fill(torch.tensor([True, False, False]), -torch.inf)
        (x.amax() + (x + mask).softmax(0).sum()).backward()
        lowest = torch.full((2,), torch.finfo(torch.float32).min) * 1.0
    assert torch.equal(torch.rand(()), after)
    assert x.grad is not None and torch.allclose(x.grad, torch.tensor([0.0, 0.5, 0.5]), atol=1e-5)
    assert torch.isfinite(lowest).all()
