"""The command's words are frozen here, and its mistakes are one message and an exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from lockstep.cli import main
from lockstep.cli.app import VERBS
from lockstep.cli.plain import PLAIN
from tests.sources import ROOT

WORDS: dict[str, list[str]] = {
    "show": ["FILE", "--html", "--out"],
    "diff": ["OLD", "NEW"],
    "verify": ["FILE"],
    "keygen": ["FILE"],
    "check": [
        *("SCRIPT", "ARGS", "--world-size", "--mesh", "--json", "--format", "--fix"),
        *("--patch", "--repair-s", "--capture", "--two-batches", "--eager", "--calls", "--timeout"),
    ],
    "build": [
        *("SCRIPT", "ARGS", "--world-size", "--mesh", "--store", "--steps", "--device"),
        *("--real", "--all-coordinates", "--calls", "--timeout"),
    ],
    "explain": [
        *("FILE", "LINE", "SCRIPT", "ARGS", "--world-size", "--mesh", "--calls", "--timeout"),
    ],
    "compare": ["SCRIPT", "ARGS", "--nproc-per-node", "--json", "--timeout", "--keep"],
    "report": ["RUN", "--json", "--perfetto"],
    "watch": ["RUN", "--every", "--once"],
    "explain-hang": ["DUMPS", "--artifact", "--world-size"],
    "why-miss": ["RUN", "--most"],
    "store": ["ACTION", "--store", "--limit"],
    "train": ["CONFIG", "--nproc-per-node", "--check"],  # and the config's own: test_trainer_config
    "doctor": ["--json", "--alone"],
}


def words_of(verb: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return a verb's positional names and flags, as its help shows them."""
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    usage = re.sub(r"\[.*?\]", "", text.split("\n\n")[0])
    flags = re.findall(r"^\W+?(--[a-z][a-z-]*)", text, re.MULTILINE)
    return re.findall(r"(?<![\w-])[A-Z]{2,}(?![\w-])", usage) + flags


def test_the_verbs_are_those_listed_here():
    assert list(VERBS) == list(WORDS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_flags_of_each_verb_are_those_listed_here(verb, capsys):
    assert words_of(verb, capsys) == WORDS[verb]


def test_a_new_flag_would_be_seen(monkeypatch, capsys):
    def verb(file: str, deep: str = "") -> int:
        return 0

    monkeypatch.setitem(VERBS, "compare", verb)
    assert "--deep" in words_of("compare", capsys)
    monkeypatch.setitem(PLAIN, "show", verb)
    assert "--deep" in words_of("show", capsys)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["show", "gone.lockstep"], "LS001: gone.lockstep is missing\n  got  no such file"),
        (["show", "a/b/c"], "LS001: a/b/c is missing\n  got  no such file, and no folder a/b"),
        (["show", "."], "LS001: . is a folder\n  want an artifact, which is one file"),
    ],
)
def test_a_wrong_file_is_one_message_and_exit_code_2(argv, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith(told)


def test_a_damaged_artifact_is_one_message_and_exit_code_1(tmp_path, capsys):
    file = tmp_path / "torn.lockstep"
    file.write_bytes(b"not an artifact at all")
    assert main(["show", str(file)]) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "LS210" in seen.err
    assert str(file) in seen.err


def test_a_wrong_flag_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as left:
        main(["show", "x", "--colour"])
    assert left.value.code == 2
    assert "--colour" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["-m", "lockstep"], ["lockstep"]])
def test_both_ways_to_call_it_work_without_a_traceback(command):
    start = [sys.executable] if command[0] == "-m" else []
    path = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}  # noqa: PTH120
    done = subprocess.run(
        [*start, *command, "show", "gone.lockstep"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **path},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("LS001: gone.lockstep is missing")
    assert "Traceback" not in done.stderr
