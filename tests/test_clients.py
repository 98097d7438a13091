"""The command of other people's layers: what it needs, finds and leaves out; none of them here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.checker.finding import Finding, Report
from tests import library
from tests.clients import __main__ as command
from tests.clients.judged import Judgement, judge, left_out
from tests.clients.program import Program
from tests.clients.removed import Called, Place

FOLDER = Path(command.__file__).parent


def step(model: library.Layers, x: Tensor, group: Any) -> Tensor:
    loss = model(x, group, True)
    loss.backward()
    library.bucketed(model, group, True)
    return loss


def make(mesh: Any) -> Any:
    library.SCRATCH[0] = library.Scratch()
    group = library.own_group()
    return library.Layers(group), torch.randn(library.TOKENS, library.WIDE), group


def test_every_collective_of_a_program_is_seen_and_can_be_left_out():
    right = judge(Program("library", {"tp": 2}, step, make))
    assert right.silent and right.counted and right.unknown == 0.0, str(right.report)
    names = [(called.name, called.backward) for called in right.called]
    assert len(names) == 12 and names[-1] == ("all_reduce", False)  # the bucket's
    assert names[0][0] == "all_gather_into_tensor"
    wrong = left_out(right, len(names) - 1)
    assert not wrong.silent and wrong.without is right.called[-1]
    assert "11 collectives" in wrong.report.established[0]
    right.called.pop()
    assert not right.counted  # one that was not seen is told


def test_a_line_is_in_the_package_s_function_or_at_the_call():
    inside = Place("pkg/layers.py", 5, first=3, last=9, package=True)
    call = Place("tests/clients/megatron.py", 50, first=40, last=60, package=False)
    called = Called("all_reduce", False, [inside, call])
    assert called.holds("pkg/layers.py:9") and called.holds("tests/clients/megatron.py:50")
    others = ("pkg/layers.py:10", "pkg/mappings.py:5", "tests/clients/megatron.py:51", "")
    assert not any(called.holds(line) for line in others)


def judgement(*findings: Finding, without: bool = False, **report: Any) -> Judgement:
    place = Place("pkg/layers.py", 5, first=3, last=9, package=True)
    report = {"established": ["order: 0 collectives, the same"], "nodes": 100, **report}
    program = Program("p", {"tp": 2}, step, make)
    called = Called("all_reduce", False, [place]) if without else None
    return Judgement(program, Report(list(findings), **report), 0.1, [], called)


HIT = Finding("LS540", "wrong", line="pkg/layers.py:4")
SEEN = Finding("LS540", "wrong", line="own.py:1", related=("pkg/layers.py:4",))
ASIDE = Finding("LS540", "wrong", line="own.py:1")


def test_the_figures_hold_only_where_all_do(capsys: pytest.CaptureFixture[str]):
    right = [judgement()]
    wrong = [judgement(f, without=True) for f in (HIT, SEEN)]
    assert [j.named for j in (*wrong, judgement(ASIDE, without=True))] == ["line", "see", ""]
    assert command._figures(right, wrong, 11) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "left out and found: 2 of 2, named in the package or at the call: 2" in last
    for bad in (
        (right, [*wrong, judgement(without=True)], 11),
        (right, [*wrong, judgement(ASIDE, without=True)], 11),
        ([judgement(HIT)], wrong, 11),
        ([judgement(undecided=["whole or a shard?"])], wrong, 11),
        ([judgement(unknown_ops={"aten.foo": 3})], wrong, 11),
        (right, wrong, 16),
        ([], [], 11),
    ):
        assert command._figures(*bad) == 1


def test_a_package_that_is_missing_is_told_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    packages = {"torch": "torch", "nowhere": "nowhere-here", "nowhere.core": "nowhere-core"}
    monkeypatch.setattr(command, "NEEDED", packages)
    assert command.main([]) == 2
    told = "not installed: nowhere-here, nowhere-core; pip install -e '.[dev]'\n"
    assert capsys.readouterr().out == told


def test_the_shim_is_short():
    assert len((FOLDER / "shim.py").read_text().splitlines()) <= command.MOST_SHIM
