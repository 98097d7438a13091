"""Two axes at once, and several faults in one program: each is found where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lockstep as ls
from lockstep.checker.finding import Report
from tests.checker_cases import random


class Block(nn.Module):
    """Two tensor-parallel layers on a mesh of dp x tp."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.gain = ls.typed(nn.Parameter(random(1, 8)), dp=ls.R, tp=ls.I)
        tp = mesh.get_local_rank("tp")
        for i in range(2):
            up, down = random(2 + i, 16, 8).chunk(2)[tp], random(5 + i, 8, 16).chunk(2, 1)[tp]
            up, down = nn.Parameter(up.clone()), nn.Parameter(down.clone())
            setattr(self, f"up{i}", ls.typed(up, dp=ls.R, tp=ls.S(0)))
            setattr(self, f"down{i}", ls.typed(down, dp=ls.R, tp=ls.S(1)))


def make(mesh: Any) -> Any:
    x = random(9, 4, 8).chunk(2)[mesh.get_local_rank("dp")].clone()
    return Block(mesh), ls.typed(x, dp=ls.S(0), tp=ls.I)


def program(*faults: str) -> Any:
    def step(m: Block, x: torch.Tensor) -> torch.Tensor:
        h = x * m.gain
        e = h if "first" in faults else ls.convert(h, "tp", src=ls.I, dst=ls.R)
        a = F.gelu(F.linear(e, m.up0))
        h = h + ls.all_reduce(F.linear(a, m.down0), "tp", src=ls.P, dst=ls.I)
        e = h if "second" in faults else ls.convert(h, "tp", src=ls.I, dst=ls.R)
        b = F.gelu(F.linear(e, m.up1))
        h = h + ls.all_reduce(F.linear(b, m.down1), "tp", src=ls.P, dst=ls.I)
        loss = ls.loss((h**2).mean(), dp="mean")
        loss.backward()
        if "unreduced" not in faults:
            ls.reduce_grads(m, dp="mean")
        return loss

    return step


def check(*faults: str, repair_s: float = 0) -> Report:
    return ls.check(program(*faults), make, mesh={"dp": 2, "tp": 2}, repair_s=repair_s)


def test_the_right_program_passes_on_both_axes():
    found = check()
    assert found.ok, str(found)
    assert "gradients: 5 of 5 parameters' are the derivative" in found.established
    assert found.undecided == []


@pytest.mark.parametrize(
    ("faults", "sources"),
    [
        (["second"], {"b = F.gelu(F.linear(e, m.up1))"}),
        (["first", "second"], {"a = F.gelu(F.linear(e, m.up0))", "b = F.gelu(F.linear(e, m.up1))"}),
    ],
)
def test_each_missing_conversion_is_found(faults: list[str], sources: set[str]):
    found = check(*faults)
    assert {f.source for f in found.findings} == sources, str(found)
    assert {f.axis for f in found.findings} == {"tp"}


def test_faults_of_two_axes_are_both_found():
    found = check("second", "unreduced")
    assert {f.axis for f in found.findings} == {"dp", "tp"}, str(found)


def test_repairs_of_several_faults_are_verified_together():
    found = check("first", "second", repair_s=60)
    assert [f.verified for f in found.findings] == [True, True], str(found)
    assert {f.fix for f in found.findings} == {
        'a = F.gelu(F.linear(ls.convert(e, "tp", src=I, dst=R), m.up0))',
        'b = F.gelu(F.linear(ls.convert(e, "tp", src=I, dst=R), m.up1))',
    }
