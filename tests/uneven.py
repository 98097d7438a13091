"""Uneven data over four ranks, judged against one process over each step's union; jagged data.

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

JAGGED_BARS = {"graph": 0.0, "inductor": 1e-6}  # of eager; by back end


def rows_of(ended: Ended, rank: int, dtype: str) -> list[dict[str, Any]]:
    return ended.results[rank][dtype]


def worst_of(ended: Ended, dtype: str) -> float:
    return max(row["far"] for rank in range(4) for row in rows_of(ended, rank, dtype))


def worst_in(ended: Ended) -> float:
    return max(found["worst"] for found in ended.results)


def table(ended: Ended) -> tuple[bool, Table]:
    """Whether all holds, and the figures."""
    made = Table("dtype", "steps", "samples in the steps 9 and 10", "artifacts", "worst", "bar")
    holds = ended.code == 0
    built = {event["digest"] for event in ended.of("ready")}
    holds &= len(built) == len(BARS)
    for dtype, bar in BARS.items():
        rows = [rows_of(ended, rank, dtype) for rank in range(4)]
        worst = worst_of(ended, dtype)
        last = " and ".join(str([of_rank[step]["samples"] for of_rank in rows]) for step in (8, 9))
        holds &= worst < bar
        one = str(len(built) // len(BARS))
        made.add_row(dtype, str(len(rows[0])), last, one, f"{worst:.1e}", f"{bar:.0e}")
    return holds, made


def jagged(ended: dict[str, Ended]) -> tuple[bool, Table]:
    """The same of a recommender's step whose number of items differs by rank and step."""
    made = Table("back end", "steps", "items at a step", "artifacts", "worst", "bar")
    holds = True
    for backend, of_backend in ended.items():
        sizes = [size for found in of_backend.results for size in found["sizes"]]
        worst = worst_in(of_backend)
        built = len({event["digest"] for event in of_backend.of("ready")})
        holds &= of_backend.code == 0 and built == 1 and worst <= JAGGED_BARS[backend]
        steps, span = str(len(sizes) // 2), f"{min(sizes)} to {max(sizes)}"
        bar = f"{JAGGED_BARS[backend]:.0e}" if JAGGED_BARS[backend] else "bitwise"
        made.add_row(backend, steps, span, str(built), f"{worst:.1e}", bar)
    return holds, made


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Torchrun() as torchrun:
        here = Path(folder)
        even = torchrun.run("tests.ranks.uneven", folder=here / "even", world=4, limit=300)
        bags = {
            backend: torchrun.run("tests.ranks.jagged", backend, folder=here / backend, limit=300)
            for backend in JAGGED_BARS
        }
    for ended in (even, *bags.values()):
        if ended.code != 0:
            print(ended.report())
            return 1
    console = Console()
    tables = table(even), jagged(bags)
    for _, figures in tables:
        console.print(figures)
    holds = all(held for held, _ in tables)
    worst = {
        "fp32 and fp64": [f"{worst_of(even, dtype):.1e}" for dtype in BARS],
        "jagged": [f"{worst_in(bag):.1e}" for bag in bags.values()],
    }
    told = "; ".join(f"{name} off by {', '.join(far)}" for name, far in worst.items())
    print(f"{'holds' if holds else 'does not hold'}: {told}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
