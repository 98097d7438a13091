"""What `lockstep check SCRIPT` prints, and the words it refuses; real ranks are in tests/ranks."""

from __future__ import annotations

import json

import pytest

from lockstep.checker.finding import Finding, Report
from lockstep.cli import main
from lockstep.errors import UsageError
from lockstep.report.check_text import annotation, as_annotations, as_json, as_text
from lockstep.report.check_world import Judged, JudgedStep
from lockstep.spmd.mesh import overridden, parse_sizes

FOUND = Finding(
    "LS530", "the gradient is partial, by 50%", line="model.py:7", source="y = x", axis="tp"
)
RIGHT = JudgedStep("evaluate", Report(established=["order: 0 collectives"]))
WRONG = JudgedStep("train_step", Report([FOUND], undecided=["model.w on tp"]))
REFUSED = JudgedStep("export", Report(), "LS100: the step returns a Path\n  at   a.py:3")


def test_each_step_has_its_block_and_the_last_line_counts():
    assert as_text(Judged([RIGHT], [])) == (
        "established:\n  order: 0 collectives\nevaluate: nothing found"
    )
    assert "the script failed later:\nKeyError" in as_text(Judged([RIGHT], [], "KeyError"))
    text = as_text(Judged([RIGHT, WRONG, REFUSED], ["never"]))
    assert "train_step:\nLS530: the gradient is partial" in text
    assert "export:\nLS100: the step returns a Path" in text
    assert text.endswith(
        "never was not called, and is not checked\n"
        "evaluate: nothing found; 1 finding; export: not captured"
    )


def test_json_has_every_field_and_the_exit_code_follows_ok():
    told = json.loads(as_json(Judged([RIGHT, WRONG, REFUSED], ["never"])))
    assert (told["ok"], told["not_called"]) == (False, ["never"])
    assert [step["ok"] for step in told["steps"]] == [True, False, False]
    assert told["steps"][1]["findings"][0]["line"] == "model.py:7"
    assert told["steps"][2]["refused"].startswith("LS100")
    assert json.loads(as_json(Judged([RIGHT], [])))["ok"] is True


def test_github_gets_one_line_a_finding_with_its_file_and_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "models"))
    assert annotation(FOUND) == (
        "::error file=models/model.py,line=7,title=LS530::the gradient is partial, by 50%25%0A"
        "  at   model.py:7  y = x  axis tp"
    )
    rows = as_annotations(Judged([WRONG, REFUSED], [])).splitlines()
    assert rows[1] == "::notice title=lockstep::undecided: model.w on tp"
    assert rows[2].startswith("::error title=LS100::LS100: the step returns a Path%0A  at")
    assert rows[3] == "1 finding; export: not captured"


@pytest.mark.parametrize(
    ("text", "sizes"), [("", {}), ("dp=2", {"dp": 2}), ("dp=2,tp=1", {"dp": 2, "tp": 1})]
)
def test_sizes_by_axis(text, sizes):
    assert parse_sizes(text, "--mesh") == sizes


@pytest.mark.parametrize("text", ["2", "dp", "dp=0", "dp=-1", "dp=x", "dp=1,dp=2", "d p=2"])
def test_other_words_are_no_sizes(text):
    with pytest.raises(UsageError, match="want sizes by axis, as dp=2,tp=1"):
        parse_sizes(text, "--mesh")


def test_a_mesh_takes_the_sizes_that_were_given_by_name(monkeypatch):
    assert overridden({"dp": -1, "tp": 2}) == {"dp": -1, "tp": 2}
    monkeypatch.setenv("LOCKSTEP_MESH", "tp=1,cp=4")
    assert overridden({"dp": -1, "tp": 2}) == {"dp": -1, "tp": 1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--world-size", "0"], "--world-size 0"),
        (["--calls", "0"], "--calls 0"),
        (["--timeout", "0"], "--timeout 0"),
        (["--mesh", "two"], "--mesh: 'two'"),
    ],
)
def test_a_wrong_word_is_told_before_anything_runs(words, told, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(7)")
    assert main(["check", str(script), *words]) == 2
    assert told in capsys.readouterr().err
