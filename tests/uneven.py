"""Uneven data over four ranks, judged against one process over each step's union.

    python -m tests.uneven

Exits 0 where no rank hung, nothing was built again, and every loss and gradient is within the bar.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.ranks.launch import Ended, Torchrun

BARS = {"torch.float32": 1e-6, "torch.float64": 1e-12}  # relative to the largest


def rows_of(ended: Ended, rank: int, dtype: str) -> list[dict[str, Any]]:
    return ended.results[rank][dtype]


def table(ended: Ended) -> tuple[bool, Table]:
    """Whether all holds, and the figures."""
    made = Table("dtype", "steps", "samples in the steps 9 and 10", "artifacts", "worst", "bar")
    holds = ended.code == 0
    built = {event["digest"] for event in ended.of("ready")}
    holds &= len(built) == len(BARS)
    for dtype, bar in BARS.items():
        rows = [rows_of(ended, rank, dtype) for rank in range(4)]
        worst = max(row["far"] for of_rank in rows for row in of_rank)
        last = " and ".join(str([of_rank[step]["samples"] for of_rank in rows]) for step in (8, 9))
        holds &= worst < bar
        one = str(len(built) // len(BARS))
        made.add_row(dtype, str(len(rows[0])), last, one, f"{worst:.1e}", f"{bar:.0e}")
    return holds, made


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Torchrun() as torchrun:
        ended = torchrun.run("tests.ranks.uneven", folder=Path(folder), world=4, limit=300)
    if ended.code != 0:
        print(ended.report())
        return 1
    holds, figures = table(ended)
    Console().print(figures)
    print("holds" if holds else "does not hold")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
