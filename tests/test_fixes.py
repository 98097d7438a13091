"""`lockstep check --fix` and `--patch`: where a patch goes, and where none may."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.checker.repair.edits import Edit
from lockstep.cli import main
from lockstep.cli.fixes import refuse_unwritable, write_fixes
from lockstep.errors import UsageError

PATCH = (
    "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n def f(x):\n-    return x\n+    return -x\n"
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def f(x):\n    return x\n")
    return Path("train.py")


def test_fixes_go_to_a_file_and_the_sources_stay(script, capsys):
    write_fixes([Edit("train.py:2", "return -x")], script, "fix.patch")
    assert Path("fix.patch").read_text() == PATCH
    assert script.read_text() == "def f(x):\n    return x\n"
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", "fix.patch: the fixes for train.py; git apply fix.patch\n")


def test_to_standard_output_goes_nothing_but_the_patch(script, capsys):
    write_fixes([Edit("train.py:2", "return -x")], script, "-")
    assert capsys.readouterr() == (PATCH, "")


@pytest.mark.parametrize("out", ["fix.patch", "-"])
def test_without_a_verified_fix_nothing_is_written(out, script, capsys):
    write_fixes([], script, out)
    assert not Path("fix.patch").exists()
    assert capsys.readouterr() == ("", "no verified fix: nothing written\n")


def test_an_earlier_patch_is_told_of(script, capsys):
    Path("fix.patch").write_text(PATCH)
    write_fixes([], script, "fix.patch")
    assert Path("fix.patch").read_text() == PATCH
    told = "no verified fix: nothing written; fix.patch is an earlier one\n"
    assert capsys.readouterr().err == told


def test_a_file_elsewhere_is_left_out_and_told(script, tmp_path_factory, capsys):
    other = tmp_path_factory.mktemp("elsewhere") / "lib.py"
    other.write_text("def f(x):\n    return x\n")
    write_fixes([Edit(f"{other}:2", "return -x")], script, "fix.patch")
    assert f"{other} lies outside of" in capsys.readouterr().err
    assert not Path("fix.patch").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--patch", "no/where/x.patch"], "no/where/x.patch cannot be written"),
        (["--patch", "."], ". is a folder"),
        (["--patch", "train.py"], "train.py exists and is no patch"),
        (["--fix", "--repair-s", "0"], "--repair-s 0 tries no fix out"),
        (["--repair-s", "-1"], "--repair-s -1"),
        (["--fix", "--capture"], "--capture prints text"),
        (["--json", "--format", "github"], "--json and --format github"),
    ],
)
def test_a_wrong_word_is_told_before_the_script_runs(words, told, script, capsys):
    script.write_text("raise SystemExit(7)")
    assert main(["check", "train.py", *words]) == 2
    assert told in capsys.readouterr().err
    assert script.read_text() == "raise SystemExit(7)"


def test_an_unknown_format_is_refused_with_those_that_are(script, capsys):
    with pytest.raises(SystemExit) as left:
        main(["check", "train.py", "--format", "gitlab"])
    assert left.value.code == 2
    assert "github" in capsys.readouterr().err


def test_a_file_that_may_not_be_written_is_refused(script, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(UsageError, match="permission denied"):
        refuse_unwritable("fix.patch", 1.0)
    monkeypatch.undo()
    refuse_unwritable("fix.patch", 1.0)
