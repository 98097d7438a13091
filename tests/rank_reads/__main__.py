"""Show that no way to look at the rank is baked into a program: portable, or refused at its line.

    python -m tests.rank_reads

Each portable way is captured on one rank and run on every simulated rank of dp=2, tp=2, and on four
real ones, against eager, to the bit. The table prints; exits with 0 only where all of it holds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.rank_reads import before, before_refused
from tests.rank_reads.judge import PORTABLE, REFUSED, Row, before_step, portably, refusal
from tests.rank_reads.real import run_on_real_ranks


def main() -> int:
    """Judge every way; print the table and the counts."""
    rows = [portably(form) for form in PORTABLE]
    rows += [refusal(form, text, place) for form, text, place in REFUSED]
    rows += [before_step(make) for make in before.FORMS]
    rows += [before_step(*form) for form in before_refused.FORMS]
    with tempfile.TemporaryDirectory() as folder:
        real = run_on_real_ranks(Path(folder))
    table = Table("when", "way", "became", "on 4 real ranks", "told")
    for row in rows:
        told = row.told.partition("LS100: ")[2] or row.told
        table.add_row(row.kind, row.name, row.became, real.get(row.name, ""), told[:90])
    Console(width=180).print(table)
    counts = Counter(row.became for row in rows)
    wrong = [row for row in rows if not _holds(row, real)]
    for row in wrong:
        print(f"{row.kind}, {row.name}: {row.became} {real.get(row.name, '')} {row.told}")
    read = {"Vocab": "inside the step", "EarlyVocab": "by its constructor"}
    for kind, when in read.items():
        print(f"vocabulary in parts, rank read {when}, 4 real ranks, 3 steps: {real[kind]}")
    early, ours = sum(row.kind == "before the step" for row in rows), "its_"
    packaged = sum(row.name.startswith(ours) for row in rows)
    told = ", ".join(f"{count} {became}" for became, count in sorted(counts.items()))
    print(f"{len(rows)} ways ({early} before the step, {packaged} of a package): {told}")
    return 1 if wrong or {real[kind] for kind in read} != {"equal, one artifact"} else 0


def _holds(row: Row, real: dict[str, str]) -> bool:
    if row.became == "portable":
        return real.get(row.name) == "equal"
    expected = {form.__name__ for form, _, _ in [*REFUSED, *before_refused.FORMS]}
    return row.became == "refused" and row.name in expected


if __name__ == "__main__":
    sys.exit(main())
