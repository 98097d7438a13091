"""The pytest plug-in: cells, their failures in pytest's own form, and what it imports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.pytest_plugin import mesh_name
from tests.plugin import project

USES = """
import pytest, torch

def make(mesh):
    return torch.ones(2, 3)

def step(x):
    return (x * 2).sum()

"""


def session(folder: Path, suite: str, *words: str) -> project.Session:
    project.write(folder)
    (folder / "test_block.py").write_text(USES + suite)
    return project.run(folder, "test_block.py", *words)


def test_a_wrong_cell_fails_with_its_line_and_the_right_one_passes(tmp_path):
    project.write(tmp_path)
    cells = ["test_block.py::test_block[tp=2-sp=True]", "test_block.py::test_block[tp=2-sp=False]"]
    seen = project.run(tmp_path, *cells)
    (failed,) = seen.cells("FAILED")
    assert (seen.code, failed) == (1, "test_block[tp=2-sp=True]")
    assert seen.cells("PASSED") == ["test_block[tp=2-sp=False]"]
    text = seen.failure(failed)
    assert text.startswith("LS5"), text  # the report itself: nothing of pytest's or ours before it
    assert f"  at   {project.marked_line()}  {project.LINE}  axis tp\n" in text
    assert "lockstep/" not in text and "Traceback" not in text
    assert seen.checker


def test_unused_it_imports_nothing_of_the_checker_and_off_nothing_at_all(tmp_path):
    project.write(tmp_path)
    unused = project.run(tmp_path, "test_plain.py")
    assert (unused.code, unused.cells("PASSED")) == (0, ["test_sums"])
    assert "lockstep.pytest_plugin" in unused.imported
    assert unused.checker == [] and "lockstep.run" not in unused.imported
    off = project.run(tmp_path, "test_plain.py", "-p", "no:lockstep")
    assert (off.code, off.imported) == (0, [])


def test_a_mesh_may_be_given_in_the_call_and_a_report_comes_back(tmp_path):
    suite = """
def test_here(lockstep_check):
    report = lockstep_check(step, make, mesh={"tp": 2})
    assert report.ok and report.established

@pytest.mark.lockstep(mesh={"dp": 2, "tp": 1})
def test_one(lockstep_check, lockstep_mesh):
    assert lockstep_mesh == {"dp": 2, "tp": 1}
"""
    seen = session(tmp_path, suite, "-rP")
    assert seen.cells("PASSED") == ["test_here", "test_one[dp=2,tp=1]"], seen.text
    assert re.search(r"^-+ Captured lockstep call -+$", seen.text, re.M), seen.text
    assert "order: 0 collectives, the same on each of 2 ranks" in seen.text


def test_what_is_not_meant_is_told_without_a_traceback(tmp_path):
    suite = """
def test_no_mesh(lockstep_check):
    lockstep_check(step, make)

@pytest.mark.lockstep(mesh={"tp": 2})
def test_no_axis(lockstep_check):
    lockstep_check(step, make, data="dp")
"""
    seen = session(tmp_path, suite)
    assert seen.cells("FAILED") == ["test_no_mesh", "test_no_axis[tp=2]"], seen.text
    assert seen.failure("test_no_mesh").startswith("lockstep_check has no mesh\n  fix  @pytest")
    told = seen.failure("test_no_axis[tp=2]")
    assert told.startswith("LS001: ls.check: there is no mesh axis dp") and "with tp=2" in told


@pytest.mark.parametrize(
    ("mark", "test", "told"),
    [
        ('(mesh={"tp": 2})', "()", "does not fit test_it\n"),
        ('({"tp": 2})', "(lockstep_check)", "does not fit test_it\n"),
        ("(sp=[True])", "(lockstep_check)", "function uses no argument 'sp'"),
    ],
)
def test_a_marker_that_does_not_fit_is_told_when_tests_are_collected(mark, test, told, tmp_path):
    seen = session(tmp_path, f"@pytest.mark.lockstep{mark}\ndef test_it{test}: pass\n")
    assert seen.code == 2
    assert told in seen.text


def test_meshes_have_names():
    assert mesh_name({"dp": 2, "tp": 4}) == "dp=2,tp=4"
