"""A use of a parameter that gets no gradient is told, where another use gives it one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep as ls


class Tied(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.weight[ids]
        if self.how == "detach":
            head = self.weight.t().detach()  # cut
        elif self.how == "no_grad":
            with torch.no_grad():
                head = self.weight.clone().t()  # cut
        elif self.how == "unused":
            self.weight.detach()
            head = self.weight.t()
        else:
            head = self.weight.t()
        return (x @ head).logsumexp(-1).mean()


def told(how: str, model: type = Tied) -> list[str]:
    def make(mesh: Any) -> Any:
        return model(how), torch.tensor([0, 2, 3])

    def step(model: Any, ids: torch.Tensor) -> torch.Tensor:
        loss = model(ids)
        loss.backward()
        return loss

    report = ls.check(step, make, mesh={"tp": 2})
    assert report.ok, str(report)
    return [line for line in report.established if "gets no gradient" in line]


@pytest.mark.parametrize("how", ["detach", "no_grad"])
def test_a_tied_weight_that_is_cut_off_once_is_told_at_the_line(how):
    (line,) = told(how)
    assert line.startswith("taken as meant: model.weight gets no gradient through ")
    number = int(line.split(",")[0].rpartition(":")[2])
    source = Path(__file__).read_text().splitlines()[number - 1]
    assert source.endswith("# cut"), source


@pytest.mark.parametrize("how", ["none", "unused"])
def test_nothing_is_told_of_a_weight_that_is_not_cut_off(how):
    assert told(how) == []


def test_a_frozen_use_alone_is_no_cut_beside_others():
    class Frozen(Tied):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.other[ids].sum() + self.weight.detach()[ids].sum()

        def __init__(self, how: str) -> None:
            super().__init__(how)
            self.other = torch.nn.Parameter(torch.ones(4, 3))

    assert told("", Frozen) == []
