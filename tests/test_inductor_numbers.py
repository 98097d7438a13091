"""What is given by keyword reaches the compiled program: no pattern swallows it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import lockstep as ls
from lockstep import _compat


def step(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        torch.add(a @ b, c, alpha=0.1),
        torch.add(c, a @ b, alpha=2),
        torch.sub(a @ b, c, alpha=0.1),
        (a @ b).add_(c, alpha=-1),
        torch.add(a @ b, b @ c, alpha=0.1),
        torch.add(a[None] @ b[None], c, alpha=0.1),
        torch.add(functional.linear(a, b), c[0], alpha=0.1),
        torch.add(torch.addmm(c, a, b, beta=0.5, alpha=0.1), c, alpha=0.3),
        torch.addcmul(a @ b, c, c, value=0.1),
        torch.softmax(torch.div(a @ b, 0.3, rounding_mode="trunc"), -1),
        functional.gelu(a @ b + c, approximate="tanh"),
    )


def differences(store: Path) -> list[float]:
    torch.manual_seed(0)
    given = torch.randn(3, 4, 4)
    got = ls.compile(step, backend="inductor", store=store)(*given)
    return [(x - y).abs().max().item() for x, y in zip(got, step(*given), strict=True)]


def test_no_argument_is_lost(tmp_path: Path) -> None:
    assert max(differences(tmp_path)) < 1e-5


def test_the_compiler_alone_loses_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "_patterns_heed_arguments", contextlib.nullcontext)
    assert max(differences(tmp_path)) > 0.1, "torch has mended it: _compat's guard can go"


OPTIMIZERS = (
    lambda p: torch.optim.SGD(p, 0.05, weight_decay=0.1),
    lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.1, maximize=True),
    lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.1, amsgrad=True),
    lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1, foreach=True),
    lambda p: torch.optim.RMSprop(p, 0.05, weight_decay=0.1, momentum=0.9, centered=True),
    lambda p: torch.optim.Adagrad(p, 0.05, weight_decay=0.1, lr_decay=0.1),
    lambda p: torch.optim.NAdam(p, 0.05, weight_decay=0.1),
)


def train(models: list[Any], optimizers: list[Any], x: torch.Tensor) -> torch.Tensor:
    losses = [model(x).square().mean() for model in models]
    torch.stack(losses).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(losses).detach()


def trained(step: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    models = [nn.Linear(8, 4, bias=False) for _ in OPTIMIZERS]
    optimizers = [make(m.parameters()) for make, m in zip(OPTIMIZERS, models, strict=True)]
    train(models, optimizers, torch.randn(4, 8))  # some have no state before
    for _ in range(3):
        step(models, optimizers, torch.randn(4, 8))
    return [model.weight.detach() for model in models]


def test_optimizers_train_as_eager(tmp_path: Path) -> None:
    step = ls.compile(train, backend="inductor", store=tmp_path)
    for got, want in zip(trained(step), trained(train), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
