"""Show that a changed program never gets an old artifact, and that an unchanged one gets its own.

    python -m tests.staleness
    python -m tests.staleness --program model --most 50

Changes are generated. The truth is whether the captured graph changes. Exits with 0 only where
nothing is wrongly hit, and nothing misses in vain but for a known kind of reason.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter

import tyro

from tests.staleness.environment import CHANGES, SAME, library
from tests.staleness.judge import Program
from tests.staleness.results import (
    MUST_HIT,
    Outcome,
    judge_changes,
    judge_mutants,
    judge_rewritings,
    told,
)

PROGRAMS = (
    Program("model", ("model", "parts"), (("dp", 2),)),
    Program("sharded", ("sharded",), (("dp", 2), ("tp", 2))),
    Program("looped", ("looped",), (("dp", 2),)),
)


def main(program: str = "", most: int = 0) -> int:
    """Judge the changes and print the two error counts.

    Args:
        program: the mutants of this one alone, and nothing else.
        most: mutants of each program; 0: all.
    """
    logging.disable(logging.ERROR)  # torch tells of every mutant that does not run
    rows: list[Outcome] = []
    with library("1.5"):
        for one in PROGRAMS:
            if program in ("", one.main):
                found = list(judge_mutants(one, lambda mutant: True, most))
                print(f"{one.main}: {len(found)} mutants: {told(found)}", flush=True)
                rows += found
        if not program:
            around = list(judge_changes(PROGRAMS[0], CHANGES))
            same = list(judge_changes(PROGRAMS[0], SAME))
            same += [row for one in PROGRAMS for row in judge_rewritings(one)]
            print(f"environment: {len(around)} changes: {told(around)}")
            print(f"must hit: {len(same)} changes: {told(same)}")
            rows += around + same
    return report(rows)


def report(rows: list[Outcome]) -> int:
    """Print what went wrong and the counts, last; returns the exit code."""
    wrong = [row for row in rows if row.became == "wrongly hit" or _silent(row)]
    vain = [row for row in rows if row.became == "missed in vain"]
    odd = [row for row in vain if row.why in ("other", MUST_HIT)]
    failed = [row for row in rows if row.became == "failed" and row.kind in ("environment", "same")]
    for title, listed in (("WRONGLY HIT", wrong), ("IN VAIN", odd), ("FAILED", failed)):
        for row in listed:
            print(f"{title} {row.kind}: {row.change} ({', '.join(row.fields[:3])}) {row.why}")
    kinds = Counter(row.why for row in vain).most_common()
    print("missed although the graph is the same:")
    for kind, _ in kinds:
        for row in vain:
            if row.why == kind:
                print(f"  {kind}: {row.change}")
    print(f"{len(rows)} changes: {told(rows)}")
    print("missed although the graph is the same, by kind:")
    for kind, count in kinds:
        print(f"  {count:4} {kind}")
    print(f"missed although the graph is the same: {len(vain)}; of no known kind: {len(odd)}")
    changed = len(wrong) + sum(row.became == "missed" for row in rows)
    print(f"wrongly hit: {len(wrong)} of {changed} that change the graph")
    return 1 if wrong or odd or failed or not rows else 0


def _silent(row: Outcome) -> bool:
    """Whether what may change how kernels compute has hit."""
    return row.kind == "environment" and row.became == "hit"


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
