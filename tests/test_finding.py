"""The text of findings and reports."""

from __future__ import annotations

import json
from collections import Counter

from lockstep.checker.finding import Finding, Report

PARTIAL = Finding(
    "LS520",
    "the gradient of g is still partial on tp",
    line="model.py:7",
    source="h = x * g",
    axis="tp",
    got="P",
    want="I",
    why="each rank would step by its own part",
    fix='g = ls.convert(g, "tp", src=I, dst=R)',
    verified=True,
    witness="gold",
    related=("model.py:3", "model.py:4"),
)


def test_a_finding_is_one_text():
    assert str(PARTIAL).splitlines() == [
        "LS520: the gradient of g is still partial on tp",
        "  at   model.py:7  h = x * g  axis tp",
        "  got  P",
        "  want I",
        "  why  each rank would step by its own part",
        '  fix  g = ls.convert(g, "tp", src=I, dst=R)   (verified)',
        "  see  model.py:3",
        "       model.py:4",
    ]


def test_a_fix_that_was_not_tried_is_not_called_verified():
    assert str(Finding("LS520", "x", fix="y")).splitlines()[1:] == ["  fix  y"]


def test_a_report_is_ok_without_findings_and_counts_them_else():
    assert Report().ok and str(Report()) == ""
    report = Report([PARTIAL], ["order"], ["g: ls.typed(g, tp=...)"], Counter({"aten.foo": 2}))
    assert not report.ok
    assert str(report).splitlines()[8:] == [
        "1 finding",
        "established:",
        "  order",
        "undecided:",
        "  g: ls.typed(g, tp=...)",
        "no type rule for:",
        "  aten.foo (2)",
    ]


def test_a_long_list_of_what_is_undecided_is_cut_in_the_text_alone():
    report = Report(undecided=[f"w{i}" for i in range(20)])
    assert str(report).splitlines()[-2:] == ["  w7", "  and 12 more; the JSON has them all"]
    assert len(report.to_json()["undecided"]) == 20
    assert str(Report(undecided=["w"] * 9)).splitlines()[-1] == "  w"


def test_a_report_is_json():
    text = json.dumps(Report([PARTIAL], unknown_ops=Counter({"aten.foo": 2})).to_json())
    assert json.loads(text)["findings"][0]["axis"] == "tp"


def test_a_fix_for_another_line_says_which():
    finding = Finding("LS503", "x", line="a.py:2", fix="y = 1", fix_line="a.py:1", verified=True)
    assert str(finding).splitlines()[-1] == "  fix  y = 1   (for a.py:1, verified)"
