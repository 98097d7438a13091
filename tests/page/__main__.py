"""Open the pages in headless Chromium: a real two-rank run, 10,000 made-up ranks, an artifact.

python -m tests.page [--run FOLDER] [--docs]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tyro

from lockstep.cli import main as lockstep
from lockstep.report.job import run_job
from tests.page import checks, made_up
from tests.page.browser import Browser

ROOT = Path(__file__).parents[2]
WORLD, LARGEST, TIMES, MORE_S = 10_000, 10e6, 4, 2.0
RUN_LIMIT_S = 900.0


def real_run(folder: Path) -> Path:
    """Train on two ranks from an empty store; returns the run's folder."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, "examples/train_llama.py", "--steps", "40"]
    own = {"LOCKSTEP_STORE": str(folder / "store"), "LOCKSTEP_RUNS": str(folder / "runs")}
    os.chdir(ROOT)
    done = run_job(command, {**os.environ, **own, "OMP_NUM_THREADS": "1"}, RUN_LIMIT_S)
    if done.code != 0:
        raise SystemExit(f"{done.output}\nthe run ended with exit code {done.code}")
    return folder / "runs" / "latest"


def opened(browser: Browser, path: Path) -> float:
    """The middle of three openings, in seconds."""
    return statistics.median(browser.open(path) for _ in range(3))


def report(browser: Browser, run: Path, folder: Path, docs: bool) -> Iterator[checks.Row]:
    """The page of a real run."""
    page = folder / "report.html"
    lockstep(["report", str(run), "-o", str(page)])
    yield from checks.looks(browser, page, "report")
    yield from checks.shows(browser)
    if docs:
        browser.picture(ROOT / "docs" / "img" / "report.png")
    yield from checks.clicks(browser)


def large(browser: Browser, folder: Path) -> Iterator[checks.Row]:
    """The page of very many ranks."""
    page, empty = folder / "many.html", folder / "empty.html"
    lockstep(["report", str(made_up.journal(folder / "many", WORLD)), "-o", str(page)])
    empty.write_text("<!doctype html><title>empty</title>")
    size, none, spent = page.stat().st_size, opened(browser, empty), opened(browser, page)
    yield f"{WORLD} ranks: {size / 1e6:.1f} MB, {LARGEST / 1e6:.0f} at most", size < LARGEST
    most = TIMES * none + MORE_S
    yield f"it opens in {spent:.2f} s, {most:.2f} at most (empty {none:.3f} s)", spent <= most
    yield from checks.many(browser, WORLD)


def artifact(browser: Browser, folder: Path, docs: bool) -> Iterator[checks.Row]:
    """The page of an artifact of 32 layers."""
    page = folder / "artifact.html"
    lockstep(["show", "--html", "-o", str(page), str(made_up.artifact(folder / "a.lockstep"))])
    yield from checks.looks(browser, page, "artifact")
    if docs:
        browser.picture(ROOT / "docs" / "img" / "artifact.png")
    yield from checks.graph(browser)


def main(run: Path | None = None, docs: bool = False) -> int:
    """Print what holds; exit code 1 where something does not.

    Args:
        run: a folder of journals of two ranks; by default one is made by the example.
        docs: write the screenshots of the docs.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-page-") as name, Browser() as browser:
        folder = Path(name)
        rows = [
            *report(browser, run or real_run(folder), folder, docs),
            *large(browser, folder),
            *artifact(browser, folder, docs),
        ]
    for what, held in rows:
        print(f"{'pass' if held else 'FAIL'}  {what}")
    held = sum(held for _, held in rows)
    print(f"{held} of {len(rows)} hold, in Chromium")
    return 0 if held == len(rows) else 1


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
