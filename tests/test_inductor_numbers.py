"""What is given by keyword reaches the compiled program: no pattern swallows it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
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
