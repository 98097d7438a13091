"""torch's recurrent layers renew a list of their own weights: no change of the step's."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import lockstep as ls
from lockstep.errors import LoweringError


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


def test_an_lstm_of_mkldnn_is_refused_and_torchs_own_trains(tmp_path: Path) -> None:
    model, x = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    compiled = ls.compile(step, backend="graph", store=tmp_path / "store")
    with pytest.raises(LoweringError, match="an LSTM of the CPU's library"):
        compiled(model, x)
    torch.backends.mkldnn.set_flags(False)
    try:
        loss, twin = compiled(model, x), copy.deepcopy(model)
        twin.zero_grad()
        assert torch.equal(loss, step(twin, x).detach())
    finally:
        torch.backends.mkldnn.set_flags(True)
