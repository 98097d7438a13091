"""A sample project in a folder of its own, whose suite runs under the installed plug-in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SAMPLE = Path(__file__).with_name("sample")
FILES = {
    "block.py": "block.py",
    "suite.py": "test_block.py",
    "plain.py": "test_plain.py",
    "conftest.py": "conftest.py",
}
WRONG = ["test_block[tp=2-sp=True]", "test_block[tp=4-sp=True]"]
LINE = "return x * self.norm  # wrong under sequence parallelism"


@dataclass(frozen=True)
class Session:
    """One run of pytest: its exit code, its text, and what of Lockstep it has imported."""

    code: int
    text: str
    imported: list[str]

    def cells(self, outcome: str) -> list[str]:
        """The tests of one outcome, "PASSED" or "FAILED", in the order of their run."""
        return re.findall(rf"^\S+?::(\S+) {outcome}", self.text, re.MULTILINE)

    def failure(self, cell: str) -> str:
        """What pytest prints of one failed test."""
        found = re.search(rf"^_+ {re.escape(cell)} _+\n(.*?)(?=^[_=]{{3}})", self.text, re.M | re.S)
        return found.group(1) if found else ""

    @property
    def checker(self) -> list[str]:
        """The modules of the checker that were imported."""
        return [name for name in self.imported if name.startswith("lockstep.checker")]


def write(folder: Path) -> None:
    """Put the sample project into a folder."""
    for name, target in FILES.items():
        shutil.copy(SAMPLE / name, folder / target)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")


def run(folder: Path, *words: str) -> Session:
    """Run pytest there, with the plug-ins that are installed."""
    (folder / "imported").unlink(missing_ok=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=env,
        timeout=900,
    )
    seen = folder / "imported"
    imported = seen.read_text().split() if seen.exists() else []
    return Session(done.returncode, done.stdout + done.stderr, imported)


def marked_line() -> str:
    """The line of the block that is wrong, as a finding names it."""
    rows = (SAMPLE / "block.py").read_text().splitlines()
    (number,) = [i for i, row in enumerate(rows, 1) if LINE in row]
    return f"block.py:{number}"
