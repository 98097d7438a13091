"""`lockstep explain`: types of the values and gradients of a line, set up on real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.cli import main
from tests.ranks.test_check_script import SCRIPT, line_of


def explain(capsys: pytest.CaptureFixture[str], line: object, *words: str) -> tuple[int, str, str]:
    code = main(["explain", f"{SCRIPT}:{line}", str(SCRIPT), *words])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_a_line_has_the_type_and_the_gradient_type_of_each_value(capsys):
    at = line_of("hidden = torch.relu(")
    code, out, err = explain(capsys, at)
    assert code == 0, err
    head, *rows = out.splitlines()
    assert head == f"{SCRIPT}:{at}  hidden = torch.relu(wide @ self.up.t())"
    found = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert found["model.up"] == "f32[8@tp, 8] {tp: S(0)} gradient f32[8@tp, 8] {tp: S(0)}"
    assert found["relu"] == "f32[4, 8@tp] {tp: S(1)} gradient f32[4, 8@tp] {tp: S(1)}"


def test_a_gradient_that_no_one_reduces_is_seen_to_be_partial(capsys):
    at = line_of("x = x * self.gain")
    _, out, _ = explain(capsys, at, "--mesh", "tp=2", "--", "no convert")
    assert "  mul         f32[4, 8] {tp: I}  gradient f32[4, 8] {tp: P}" in out


def test_a_line_without_values_is_told_with_those_nearby(capsys):
    code, _, err = explain(capsys, line_of("class Block"))
    assert code == 2
    near = line_of("x = x * self.gain"), line_of("hidden = torch.relu(")
    assert "no step computes anything on" in err and "class Block(nn.Module):" in err
    assert all(str(number) in err.partition("a line such as ")[2] for number in near)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model.py", "train.py"], "'model.py' is no line"),
        (["model.py:0", "train.py"], "'model.py:0' is no line"),
        (["gone.py:3", "train.py"], "gone.py is missing"),
    ],
)
def test_words_that_name_no_line_are_told(words, told, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", *words]) == 2
    assert told in capsys.readouterr().err
