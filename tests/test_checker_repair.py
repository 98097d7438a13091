"""Repairs: lines changed for a while, ways to say them, and only what every witness accepts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lockstep as ls
from lockstep.checker.finding import Finding
from lockstep.checker.repair.edits import CannotEdit, Edit, applied
from lockstep.checker.repair.variants import operands, parsed, variants
from tests.checker_cases import CASES, Held, random


def double(x: int) -> int:
    return x + x


def _line(function: object, after: int = 1) -> str:
    code = function.__code__
    return f"tests/test_checker_repair.py:{code.co_firstlineno + after}"


def test_an_edit_lasts_as_long_as_its_block():
    with applied(Edit(_line(double), "return x * 10")):
        assert double(2) == 20
    assert double(2) == 4


def test_an_edit_reaches_functions_that_close_over_others():
    def outer(y: int) -> object:
        def inner(x: int) -> int:
            return x + y

        return inner

    inner = outer(3)
    with applied(Edit(_line(inner), "return x * y")):
        assert inner(2) == 6
    assert inner(2) == 5


def test_names_of_a_fix_are_there_while_it_runs():
    assert "V" not in globals()
    with applied(Edit(_line(double), "return (V, ls.R, x)")):
        assert double(1) == (ls.V, ls.R, 1)
    assert "V" not in globals()


@pytest.mark.parametrize("text", ["return (", "return x +"])
def test_what_is_no_python_is_refused(text: str):
    with pytest.raises(CannotEdit), applied(Edit(_line(double), text)):
        pass
    assert double(2) == 4


def test_a_line_of_no_function_is_refused():
    with pytest.raises(CannotEdit), applied(Edit("tests/test_checker_repair.py:100000", "pass")):
        pass


def test_operands_are_the_widest_values_that_are_read():
    source = 'y = f.g(a.b, s["x"] + c).sum() * d'
    spans = operands(parsed(source))
    assert [source[a:b] for a, b in spans] == ["a.b", 's["x"]', "c", "d"]


def test_variants_come_cheapest_first():
    found = list(variants('y = c.all_reduce(p + b, "tp", "R")   # a comment', "tp"))
    assert found[:3] == [
        'y = (c.all_reduce(p, "tp", "R") + b)',
        'y = (p + c.all_reduce(b, "tp", "R"))',
        'y = c.all_reduce(p + b, "tp", "I")',
    ]
    assert 'y = c.all_reduce(p + ls.convert(b, "tp", src=I, dst=P), "tp", "R")' in found
    assert list(variants("for x in", "tp")) == []


def make(mesh: object) -> Held:
    tensors = {"x": (random(0, 4, 8), ls.I), "b": (random(4, 8), ls.I)}
    tensors |= {"w1": (random(2, 16, 8), ls.S(0)), "w2": (random(3, 8, 16), ls.S(1))}
    return Held(mesh, **tensors)


def no_copy(m: Held) -> torch.Tensor:
    h = F.linear(m.x * 2, m.w1)
    y = ls.all_reduce(F.linear(F.gelu(h), m.w2), "tp", src=ls.P, dst=ls.I)
    loss = ((y + m.x) ** 2).sum()
    loss.backward()
    return loss


def bias_inside(m: Held) -> torch.Tensor:
    h = F.linear(ls.convert(m.x, "tp", src=ls.I, dst=ls.R), m.w1)
    y = ls.all_reduce(F.linear(F.gelu(h), m.w2) + m.b, "tp", src=ls.P, dst=ls.I)
    loss = (y**2).sum()
    loss.backward()
    return loss


def check(step: object, **options: object) -> Finding:
    (finding,) = ls.check(step, make, mesh={"tp": 2}, **options).findings
    return finding


@pytest.mark.parametrize("step", [no_copy, bias_inside])
def test_a_verified_fix_makes_the_check_pass_when_pasted(step: object):
    finding = check(step)
    assert finding.verified and "(verified)" in str(finding)
    with applied(Edit(finding.fix_line or finding.line, finding.fix)):
        assert ls.check(step, make, mesh={"tp": 2}).ok
    assert not ls.check(step, make, mesh={"tp": 2}, repair_s=0).ok


def test_nothing_is_tried_without_a_budget():
    assert not check(no_copy, repair_s=0).verified


def test_what_no_candidate_repairs_is_not_called_verified():
    make_step, build, mesh, _ = CASES["order"]
    (finding,) = ls.check(make_step("swapped"), build, mesh=mesh).findings
    assert not finding.verified


def unreduced(model: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    loss = ls.loss(model(x).square().mean(), dp="mean")
    loss.backward()
    return loss


def halved(model: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    loss = ls.loss((model(x) / 2).square().mean(), dp="mean")
    loss.backward()
    return loss


def own_batch(mesh: object) -> tuple[torch.nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.randn(6, 4).chunk(mesh.size())[mesh.get_local_rank()]


@pytest.mark.parametrize("step", [unreduced, halved])
def test_a_reduction_is_put_in_behind_the_backward(step: object):
    report = ls.check(step, own_batch, mesh={"dp": 2}, data="dp", repair_s=60)
    (finding,) = report.findings
    assert finding.verified and finding.fix_line == _line(step, 2)
    assert finding.fix == 'loss.backward()\nls.reduce_grads(model, dp="mean")'
    added = [row for row in report.patch().splitlines() if row.startswith("+ ")]
    assert added == ['+    ls.reduce_grads(model, dp="mean")']
