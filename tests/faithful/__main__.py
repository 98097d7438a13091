"""Steps whose results hang on what a capture could lose: right to the bit, or refused at a line.

    python -m tests.faithful [WORD...]

WORD: those cases alone whose name holds one. Each runs on two gloo ranks as it is and compiled, and
then the same model runs as it is, in the same process: that call has to give what it gives without
a capture before it. Exits with 0 where no result is wrong and every refusal names a line.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faithful.ranks import AFTER, CASES, REFUSED, RIGHT, WRONG
from tests.ranks.launch import Torchrun

LIMIT_S = 900.0


def main(words: list[str]) -> int:
    """Judge the cases on two ranks; print the table and the counts."""
    chosen = [name for name in CASES if not words or any(word in name for word in words)]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder, Torchrun() as torchrun:
        while len(rows) < len(chosen):
            place = Path(folder) / str(len(rows))
            left = chosen[len(rows) :]
            ended = torchrun.run("tests.faithful.ranks", *left, folder=place, limit=LIMIT_S)
            if ended.code or not all(ended.results):
                print(ended.report())
                return 1
            rows += merged(ended.results)
    table = Table("case", "became", "refused at")
    for row in rows:
        table.add_row(*row)
    Console(width=150).print(table)
    print(verdict(rows))
    return 0 if rows and all(map(holds, rows)) else 1


def merged(results: list[list[list[str]]]) -> list[list[str]]:
    """One row a case, of the rank on which it went worst."""
    worst = (RIGHT, REFUSED, AFTER, WRONG).index
    return [max(rows, key=lambda row: worst(row[1])) for rows in zip(*results, strict=True)]


def holds(row: list[str]) -> bool:
    """Whether a case is right, or refused at a line."""
    _, became, where = row
    return became == RIGHT or (became == REFUSED and ":" in where)


def verdict(rows: list[list[str]]) -> str:
    """The counts, and what an eager step after each capture gave."""
    counts = Counter(became for _, became, _ in rows)
    wrong = sum(not holds(row) for row in rows)
    told = ", ".join(f"{count} {became}" for became, count in sorted(counts.items()))
    return f"{len(rows)} cases: {told}; {wrong} wrong, each with the step as it is after it"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
