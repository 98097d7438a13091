"""The documentation: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT
from tests.test_project_readme import blocks, run_script, unknown_commands

DOCS = ROOT / "docs"
RUN = (
    "first.md",
    "types.md",
    "parallel.md",
    "wrapped.md",
)  # each page's blocks are one script; others' are held by a test of their own
ELSEWHERE = {
    "porting_megatron.md": "test_docs_porting.py",
    "format.md": "test_format_page.py",
    "codes.md": "test_docs_codes.py",
    "logging.md": "test_logging.py",
}


def script_of(page: str) -> str:
    return "\n".join(blocks((DOCS / page).read_text(), "python"))


def commands_of(text: str) -> list[str]:
    """Return the lines that a page tells a reader to type."""
    shells = "\n".join(blocks(text, "console"))
    return [line.removeprefix("$ ") for line in shells.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("page", RUN)
def test_a_page_s_blocks_run_as_one_script(page, tmp_path):
    done = run_script(script_of(page), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_page_of_types_says_what_is_printed(tmp_path):
    done = run_script(
        script_of("types.md").replace("assert not report.ok", "assert report.ok"), tmp_path
    )
    assert done.returncode != 0, "the page's wrong block passed"


def test_every_page_with_code_is_run_somewhere():
    pages = {page.name for page in DOCS.glob("*.md") if blocks(page.read_text(), "python")}
    assert pages == {*RUN, *ELSEWHERE}
    assert all((ROOT / "tests" / name).exists() for name in ELSEWHERE.values())


def test_every_command_exists():
    lines = [line for page in sorted(DOCS.glob("*.md")) for line in commands_of(page.read_text())]
    assert len(lines) > 8
    known = [line for line in lines if re.match(r"(\w+=\S+ )*(lockstep|make|python) ", line)]
    scripts = re.compile(r"\b(train|script)\.py\b")  # the reader's own
    assert [line for line in known if unknown_commands(scripts.sub("", line))] == []


def test_the_idea_in_one_file_runs_and_finds_its_fault(tmp_path):
    command = [sys.executable, DOCS / "from_scratch.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "w_in: its gradient is partial" in done.stdout
    assert "step: right" in done.stdout
    assert "equal to eager to the bit: True" in done.stdout
    assert len((DOCS / "from_scratch.py").read_text().splitlines()) <= 400


def test_the_site_builds_and_its_links_lead_somewhere(tmp_path):
    done = site(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "types" / "index.html").exists()


def test_a_link_to_nowhere_fails_the_site(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[gone](nothing.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\nstrict: true\n")
    assert site(tmp_path / "mkdocs.yml", tmp_path).returncode != 0


def site(config: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config]
    return subprocess.run(
        [*command, "--site-dir", folder / "site"], capture_output=True, text=True, cwd=folder
    )
