"""A schedule is not told that the optimizer never ran, when it ran inside a loaded step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

import lockstep as ls


def step(model: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def start(store: Path) -> list[float]:
    """One start of a job: the second one loads what the first one built."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    compiled = ls.compile(step, backend="graph", store=store)
    losses = []
    for _ in range(3):
        losses.append(compiled(model, optimizer, torch.ones(4, 3)).item())
        schedule.step()
        optimizer.zero_grad()
    return losses


def test_no_warning_where_the_step_was_loaded(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert start(tmp_path / "store") == start(tmp_path / "store")
