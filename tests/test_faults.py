"""Own wrong programs are told at their lines, right ones pass, and the judging itself can fail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.checker.inference.types import infer
from lockstep.checker.world import capture_world
from tests.fault_cases.expected import EXPECTED, Expected
from tests.fault_cases.expected import PAIRS as PAIRS_EXPECTED
from tests.fault_cases.judged import Outcome, figures, judge
from tests.fault_cases.programs import PAIRS, RIGHT, WRONG
from tests.fault_cases.transformer import Transformer
from tests.faults.__main__ import main
from tests.faults.cases import HERE

FEW = ["experts", "tp, tied"]
SOME = ["no copy into head", "exchange one way"]
NEUTRAL = """
class Base:
    def __init__(self, mesh, rank, groups):
        self.mesh, self.groups = mesh, groups
        self.coord = {"tp": rank}
    def group(self, a): return self.groups[a]
    def size(self, a): return self.mesh[a]
    def rank(self, a): return self.coord[a]
"""
CASE = '''
"""FAULT: a sum that is not reduced."""
import torch
MESH = {{"tp": 2}}

def setup(c):
    draw = torch.Generator().manual_seed(1)
    w = torch.randn(4, generator=draw).chunk(2)[c.rank("tp")].clone()
    return dict(w=c.leaf(w, tp="S0"))

def loss(c, s, fault):
    y = (s["w"] ** 2).sum()
    y = y if {wrong} else c.all_reduce(y, "tp", "I")
    return y ** 2

def finish(c, s, fault):
    return {{"w": (s["w"].grad, "tp0")}}

def reference():
    w = torch.randn(4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    ((w ** 2).sum() ** 2).backward()
    return dict(w=w.grad)
'''


@pytest.fixture(autouse=True)
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transformer of one block shows what one of two does."""
    monkeypatch.setattr(Transformer, "depth", 1)


@pytest.mark.parametrize("name", FEW)
def test_a_right_program_is_silent(name):
    outcome = judge(name, RIGHT[name](), None)
    assert outcome.silent, [*map(str, outcome.findings), outcome.error]


@pytest.mark.parametrize("name", SOME)
def test_a_wrong_program_is_told_at_its_line(name):
    outcome = judge(name, WRONG[name](), EXPECTED[name])
    assert outcome.flagged and outcome.placed, [*map(str, outcome.findings), outcome.error]
    elsewhere = Outcome(name, Expected("no axis", ("no line",)), outcome.findings)
    assert not elsewhere.placed


@pytest.mark.parametrize("name", ["summed after each backward", "labels shifted within a rank"])
def test_of_a_pair_the_wrong_one_is_told_and_the_right_one_silent(name):
    wrong = judge(name, PAIRS[name](True), PAIRS_EXPECTED[name])
    assert wrong.placed, [*map(str, wrong.findings), wrong.error]
    assert judge(name, PAIRS[name](False), None).silent


@pytest.mark.parametrize("name", PAIRS)
def test_types_alone_do_not_refuse_a_right_program(name):
    program = PAIRS[name](False)
    found = infer(capture_world(program.step, program.make, program.mesh)).findings
    assert not found, list(map(str, found))


def test_every_wrong_program_has_its_line_in_the_table():
    assert EXPECTED.keys() == WRONG.keys() and PAIRS_EXPECTED.keys() == PAIRS.keys()
    sources = "".join(
        file.read_text()
        for file in HERE.with_name("fault_cases").glob("*.py")
        if file.stem != "expected"
    )
    for name, expected in {**EXPECTED, **PAIRS_EXPECTED}.items():
        assert all(text in sources for text in expected.texts), name


def test_the_figures_hold_only_if_all_of_them_do():
    finding: Any = type("Finding", (), {"axis": "tp", "source": "y = f(x)"})
    right, wrong = Outcome("r"), Outcome("w", Expected("tp", ("f(x)",)), [finding])
    missed = Outcome("w", Expected("tp", ("f(x)",)))
    assert figures([right, *[wrong] * 22]).hold
    assert figures([right, *[wrong] * 20, missed, missed]).hold
    assert not figures([right, *[wrong] * 19, *[missed] * 3]).hold
    assert not figures([Outcome("r", None, [finding]), *[wrong] * 22]).hold
    assert not figures([Outcome("r", error="failed"), *[wrong] * 22]).hold
    assert not figures([right]).hold
    elsewhere = Outcome("w", Expected("tp", ("g(x)",)), [finding])
    assert not figures([right, *[wrong] * 15, *[elsewhere] * 6]).hold


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of cases, whose modules are forgotten afterwards."""
    (tmp_path / "_kit.py").write_text(NEUTRAL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("_kit", "c90_sum"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path  # type: ignore[misc]
    for name in ("_kit", "c90_sum"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("wrong", "code"), [("fault", 0), ("False", 1), ("True", 1)])
def test_a_folder_of_cases_is_judged(folder, capsys, wrong, code):
    (folder / "c90_sum.py").write_text(CASE.format(wrong=wrong))
    assert main([str(folder), "--say"]) == code, capsys.readouterr().out


def test_the_adapter_is_short_and_knows_no_case():
    text = (HERE / "adapter.py").read_text()
    assert len(text.splitlines()) <= 120
    assert not [number for number in range(100) if f"c{number:02}" in text]
