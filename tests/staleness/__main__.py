"""Show that a changed program never gets an old artifact, and that an unchanged one gets its own.

    python -m tests.staleness
    python -m tests.staleness --program model --most 50

Changes are generated. The truth is whether the captured graph changes. Exits with 0 only where
nothing is wrongly hit, and nothing misses in vain but for a known kind of reason.
"""

from __future__ import annotations

import sys
from collections import Counter

import tyro

from tests.staleness.judge import Program
from tests.staleness.results import Outcome, judge_mutants, told

PROGRAMS = (Program("model", ("model", "parts"), (("dp", 2),)),)


def main(program: str = "", most: int = 0) -> int:
    """Judge the changes and print the two error counts.

    Args:
        program: this one alone.
        most: mutants of each program; 0: all.
    """
    rows: list[Outcome] = []
    for one in PROGRAMS:
        if program not in ("", one.main):
            continue
        found = []
        for row in judge_mutants(one, lambda mutant: True):
            found.append(row)
            if most and len(found) >= most:
                break
        print(f"{one.main}: {len(found)} mutants: {told(found)}", flush=True)
        rows += found
    return report(rows)


def report(rows: list[Outcome]) -> int:
    """Print what went wrong and the counts, last; returns the exit code."""
    wrong = [row for row in rows if row.became == "wrongly hit"]
    vain = [row for row in rows if row.became == "missed in vain"]
    odd = [row for row in vain if row.why == "other"]
    for row in wrong:
        print(f"WRONGLY HIT {row.kind}: {row.change}")
    for row in odd:
        print(f"IN VAIN {row.kind}: {row.change} ({', '.join(row.fields[:3])})")
    kinds = Counter(row.why for row in vain).most_common()
    print(f"{len(rows)} changes: {told(rows)}")
    print(f"wrongly hit: {len(wrong)}")
    listed = ", ".join(f"{kind} {count}" for kind, count in kinds)
    print(f"missed although the graph is the same: {len(vain)} ({listed}); other: {len(odd)}")
    return 1 if wrong or odd or not rows else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
