"""Writes through a view while a check takes notes: the step is captured as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lockstep as ls


def column(h: torch.Tensor) -> torch.Tensor:
    h = h + 0
    h.t()[0].copy_(h[:, 1].detach())
    return h


def flat(h: torch.Tensor) -> torch.Tensor:
    h = h + 0
    h.view(-1)[0].zero_()
    h.t().add_(1)
    return h


@pytest.mark.parametrize("write", [column, flat])
def test_a_write_through_a_view(write: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 3), torch.randn(4, 4)

    def step(model: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        loss = write(model(x)).square().mean()
        loss.backward()
        return loss

    want = step(model, x)
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    loss = ls.compile(step, backend="graph", store=tmp_path)(model, x)
    assert torch.equal(loss, want.detach()) and len(grads) == 2
    for p, grad in zip(model.parameters(), grads, strict=True):
        assert p.grad is not None and torch.equal(p.grad, grad)
