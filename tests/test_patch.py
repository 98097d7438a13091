"""Fixes as a patch: what git and patch make of it, imports that a fix needs, and odd files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lockstep.checker.finding import Finding, Report
from lockstep.checker.repair.edits import CannotEdit, Edit
from lockstep.checker.repair.patch import edited_texts, patch_of, with_lines
from lockstep.checker.source import full_path

SOURCE = '''"""A model."""

from __future__ import annotations

import torch  # first


def step(x, w):
    y = x @ w  # the product
    return y
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file; paths of earlier tests are forgotten."""
    monkeypatch.chdir(tmp_path)
    full_path.cache_clear()
    (tmp_path / "model.py").write_text(SOURCE)
    yield tmp_path
    full_path.cache_clear()


def test_a_line_keeps_its_indentation_and_its_comment():
    made = with_lines(SOURCE, {9: "y = w @ x"})
    assert made == SOURCE.replace("y = x @ w  # the product", "y = w @ x  # the product")


def test_what_a_fix_names_is_imported_behind_the_first_imports():
    made = with_lines(SOURCE, {9: 'y = ls.convert(x, "tp", src=I, dst=R) @ w'})
    assert made.splitlines()[4:8] == [
        "import torch  # first",
        "import lockstep as ls",
        "from lockstep import I, R",
        "",
    ]


@pytest.mark.parametrize(
    ("head", "text", "added"),
    [
        ("import lockstep as ls\n", "y = ls.f(x)", ""),
        ("import lockstep as ls\nR = 3\n", "y = ls.f(x, R)", ""),
        ("", "y = ls.f(x)", "import lockstep as ls\n"),
        ("#!/bin/sh\n# Ours.\n", "y = ls.f(x)", "import lockstep as ls\n"),
        ('"""Doc."""\n', "y = ls.f(x)", "import lockstep as ls\n"),
        ("", "y = x.R", ""),
        ("", "y = f(x, src=R)", "from lockstep import R\n"),
    ],
)
def test_only_what_a_file_does_not_have_is_imported(head, text, added):
    body = "@f\ndef g(x):\n    y = x\n"
    number = (head + body).count("\n")
    assert with_lines(head + body, {number: text}) == f"{head}{added}@f\ndef g(x):\n    {text}\n"


def test_a_name_that_the_old_line_has_is_the_users_own():
    assert with_lines("def f(R):\n    y = R\n", {2: "y = -R"}) == "def f(R):\n    y = -R\n"


def test_several_lines_take_one_ones_place_and_windows_line_ends_stay():
    source = "import lockstep as ls\r\ndef f(m):\r\n    m.sum().backward()\r\n    return m\r\n"
    made = with_lines(source, {3: "m.sum().backward()\nls.reduce_grads(m)"})
    assert made.split("\r\n")[2:5] == [
        "    m.sum().backward()",
        "    ls.reduce_grads(m)",
        "    return m",
    ]
    assert "\n" not in made.replace("\r\n", "")


@pytest.mark.parametrize(
    ("texts", "told"), [({99: "pass"}, "has no line 99"), ({9: "y = ("}, "model.py: ")]
)
def test_what_does_not_fit_is_refused(texts, told):
    with pytest.raises(CannotEdit, match=told):
        with_lines(SOURCE, texts, "model.py")


LATIN = b"# coding: latin-1\n" + SOURCE.replace("first", "f\u00fcr").encode("latin-1")


@pytest.mark.parametrize("command", [["git", "apply"], ["patch", "-p1", "-i"]])
@pytest.mark.parametrize("source", [SOURCE.encode(), SOURCE.encode().rstrip(b"\n"), LATIN])
def test_git_and_patch_take_it(command, source, here):
    (here / "model.py").write_bytes(source)
    at = source.splitlines().index(b"    y = x @ w  # the product") + 1
    patch = patch_of([Edit(f"model.py:{at}", "y = ls.f(x, R) @ w")], here)
    assert patch.files == ("model.py",)
    (here / "fix.patch").write_bytes(patch.to_bytes())
    subprocess.run([*command, "fix.patch"], cwd=here, check=True, capture_output=True)
    after = (here / "model.py").read_bytes()
    added = b"import lockstep as ls\nfrom lockstep import R\n"
    expected = source.replace(b"x @ w  #", b"ls.f(x, R) @ w  #")
    assert after == expected.replace(b"\n\n\ndef", b"\n" + added + b"\n\ndef")


def test_files_are_named_from_the_folder_and_those_outside_are_left_out(here, tmp_path_factory):
    (here / "deep").mkdir()
    (here / "deep" / "a.py").write_text("def f(x):\n    return x\n")
    other = tmp_path_factory.mktemp("elsewhere") / "b.py"
    other.write_text("def f(x):\n    return x\n")
    edits = [Edit("deep/a.py:2", "return -x"), Edit(f"{other}:2", "return -x")]
    patch = patch_of(edits, here)
    assert patch.text.startswith("--- a/deep/a.py\n+++ b/deep/a.py\n@@ ")
    assert (patch.files, patch.outside) == (("deep/a.py",), (str(other),))
    assert set(edited_texts(edits)) == {str(here / "deep" / "a.py"), str(other)}


def test_of_two_edits_of_one_line_the_first_holds(here):
    patch = patch_of([Edit("model.py:9", "y = 1"), Edit("model.py:9", "y = 2")], here)
    assert "+    y = 1  # the product" in patch.text and "y = 2" not in patch.text


def test_a_report_gives_its_verified_fixes_alone(here):
    right = Finding("LS504", "an invariant", line="model.py:9", fix="y = w @ x", verified=True)
    open_ = Finding("LS504", "another", line="model.py:10", fix="return -y")
    report = Report([right, open_], tried=3)
    assert "+    y = w @ x  # the product" in report.patch()
    assert "return -y" not in report.patch()
    assert Report([open_]).patch() == ""
    assert "2 findings; 3 fixes tried out, 1 verified" in str(report)
