"""torch's recurrent layers renew a list of their own weights: no change of the step's."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh

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


@pytest.mark.parametrize("reduced", [True, False])
def test_an_lstm_is_checked(reduced: bool) -> None:
    def train(model: torch.nn.LSTM, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(x)[0].square().mean(), dp="mean")
        loss.backward()
        if reduced:
            ls.reduce_grads(model, dp="mean")
        return loss

    def make(mesh: DeviceMesh) -> tuple[torch.nn.LSTM, torch.Tensor]:
        torch.manual_seed(0)
        model, x = torch.nn.LSTM(3, 4), torch.randn(5, 4, 3)
        return model, x.chunk(mesh.size(), dim=1)[mesh.get_rank()]

    report = ls.check(train, make, mesh={"dp": 2}, data="dp", repair_s=0)
    assert report.ok is reduced, str(report)
