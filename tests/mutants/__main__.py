"""Leave each collective and conversion of `lockstep.parallel` out in turn, and check.

    python -m tests.mutants [WORD] [--say]

WORD: those alone whose file or verb holds it. `--say` prints the findings.
"""

from __future__ import annotations

import sys

from tests.mutants.judged import Mutant, judge, judge_right
from tests.mutants.sites import sites, without
from tests.parallel.layouts import CASES, MORE

MOST_EQUIVALENT = 0.05


def main(arguments: list[str]) -> int:
    """Print a line a layout and a line a call; exit code 1 where one is neither found nor equal."""
    words, say = [a for a in arguments if not a.startswith("--")], "--say" in arguments
    rights = []
    for case in (*CASES, *MORE):
        right = judge_right(case)
        rights.append(right)
        what = "silent" if right.silent else "ALARM"
        print(f"{case.name:<24} {right.report.nodes:>5} nodes {right.seconds:5.1f} s  {what}")
        if not right.silent:
            print(right.report)
    mutants = []
    for site in sites():
        if all(word in f"{site} {site.verb}" for word in words):
            mutants.append(judge(site, rights, without))
            print(mutants[-1], flush=True)
            _say(mutants[-1], say)
    return _figures(mutants, sum(right.silent for right in rights), len(rights))


def _say(mutant: Mutant, everything: bool) -> None:
    if everything or not (mutant.caught or mutant.equivalent):
        for case, outcome in mutant.tried:
            print(f"    {case.name}: {outcome}".replace("\n", "\n    "))


def _figures(mutants: list[Mutant], silent: int, layouts: int) -> int:
    caught = sum(mutant.caught for mutant in mutants)
    equal = sum(mutant.equivalent for mutant in mutants)
    near = sum(mutant.named in ("line", "function", "see") for mutant in mutants)
    print(
        f"right layouts without a finding: {silent} of {layouts}; left out: {len(mutants)}, "
        f"found {caught} ({near} name the call or its function), equivalent {equal}"
    )
    whole = bool(mutants) and caught + equal == len(mutants)
    few = equal <= MOST_EQUIVALENT * len(mutants)
    return 0 if whole and few and silent == layouts else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
