"""torch's recurrent layers renew a list of their own weights: no change of the step's."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

import lockstep as ls


def step(model: torch.nn.GRU, x: torch.Tensor) -> torch.Tensor:
    loss = model(x)[0].square().mean()
    loss.backward()
    return loss


def test_a_gru_trains_as_eager_and_stays_usable(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.GRU(3, 4, num_layers=2), torch.randn(5, 2, 3)
    twin = copy.deepcopy(model)
    compiled = ls.compile(step, backend="graph", store=tmp_path / "store")
    for _ in range(3):
        assert torch.equal(compiled(model, x), step(twin, x).detach())
        for ours, eager in zip(model.parameters(), twin.parameters(), strict=True):
            assert ours.grad is not None and eager.grad is not None
            assert torch.equal(ours.grad, eager.grad)
    assert torch.equal(model(x)[0], twin(x)[0])
