"""Run all cases under one torchrun a world size; exits 0 only if every claim holds.

python -m tests.bitwise --ranks 2 4
python -m tests.bitwise --all       # instead: every layout of `lockstep.parallel`
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.bitwise.every import Failed, every_layout, gaps
from tests.bitwise.report import Row, built_once, figures, merged, table
from tests.ranks.launch import Torchrun


def main() -> int:
    """Run, print the tables and then the figures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bitwise", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="world sizes")
    parser.add_argument("--quick", action="store_true", help="a small part, without inductor")
    parser.add_argument("--all", action="store_true", help="every layout of lockstep.parallel")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds a world size may take")
    asked = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    if asked.all:
        return _all(console, asked.limit)
    worlds: dict[int, list[Row]] = {}
    with tempfile.TemporaryDirectory() as name, Torchrun() as torchrun:
        folder = Path(name)
        env = {
            "LOCKSTEP_STORE": str(folder / "store"),
            "LOCKSTEP_TIMING": "",
            "CACHES": str(folder / "caches"),
        }
        for world in asked.ranks:
            ended = torchrun.run(
                "tests.bitwise.ranks",
                *(["quick"] if asked.quick else []),
                folder=folder / f"ranks{world}",
                world=world,
                limit=asked.limit,
                env=env,
            )
            if ended.code:
                console.print(ended.report(), markup=False, highlight=False)
                return 1
            worlds[world] = [*merged(ended), built_once(ended, world)]
            console.print(table(world, worlds[world]))
    for line in figures(worlds):
        console.print(line, highlight=False)
    return int(any(row["odd"] for rows in worlds.values() for row in rows))


def _all(console: Console, limit: float) -> int:
    with tempfile.TemporaryDirectory() as name, Torchrun() as torchrun:
        try:
            worlds = every_layout(torchrun, Path(name), limit)
        except Failed as failed:
            console.print(str(failed), markup=False, highlight=False)
            return 1
    for world, rows in worlds.items():
        console.print(table(world, rows))
    gaps(worlds, lambda line: console.print(line, highlight=False))
    for line in figures(worlds):
        console.print(line, highlight=False)
    return int(any(row["odd"] for rows in worlds.values() for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
