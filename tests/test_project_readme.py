"""What the README says can be done is done here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli.app import VERBS
from tests.sources import ROOT, command_files

README = (ROOT / "README.md").read_text()
CLAIMS = (ROOT / "docs/claims.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of one language; "" is a block that names none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [body for name, body in found if name == language]


def run_script(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block as a user would: saved as a script, in a plain process."""
    script = folder / "example.py"
    script.write_text(source)
    environment = {**os.environ, "LOCKSTEP_STORE": str(folder / "store")}
    return subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=folder, env=environment
    )


def unknown_commands(text: str) -> list[str]:
    """Return the shell lines that name a make target, verb or file which does not exist."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split()
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        bad_target = words[:1] == ["make"] and words[1] not in targets
        bad_verb = words[:1] == ["lockstep"] and words[1] not in VERBS
        scripts = [word for word in words if word.endswith(".py")]
        if bad_target or bad_verb or not all((ROOT / word).exists() for word in scripts):
            found.append(line)
    return found


def test_the_python_blocks_run_in_a_plain_process(tmp_path):
    sources = blocks(README, "python")
    assert len(sources) == 1
    done = run_script(sources[0], tmp_path)
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"^step (\d): loss (\d\.\d\d)$", done.stdout, re.MULTILINE)
    assert [step for step, _ in losses] == ["0", "1", "2"]
    assert all(4.5 < float(loss) < 6.5 for _, loss in losses)


def test_a_broken_block_fails(tmp_path):
    source = blocks(README, "python")[0].replace("ls.reduce_grads", "ls.reduce_grad")
    done = run_script(source, tmp_path)
    assert done.returncode != 0
    assert "reduce_grad" in done.stderr


def test_every_shell_line_names_what_exists():
    lines = [line for shell in blocks(README, "") for line in shell.splitlines()]
    lines += re.findall(r"`((?:[A-Z]+=\w+ )?(?:lockstep|torchrun) [^`]+)`", README)
    assert len(lines) >= 15
    assert unknown_commands("\n".join(lines)) == []


def test_every_claim_names_a_command_that_exists():
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)` \|", CLAIMS, re.MULTILINE)
    assert len(rows) >= 5
    for command in rows:
        assert all((ROOT / path).exists() for path in command_files(command)), command


@pytest.mark.parametrize("line", ["make dmo", "lockstep shew x", "A=b python bench/nothing.py"])
def test_a_shell_line_that_names_nothing_is_found(line):
    assert unknown_commands(line) == [line]


def test_the_readme_is_about_one_screen():
    assert len(README.splitlines()) <= 90
