"""Right programs of many parallelisms: no finding, nearly every node typed; their twins are found.

python -m tests.silent [WORD] [--say]

With WORD only programs with it in their names; `--say` prints the findings.
"""

from __future__ import annotations

import sys

from tests.silent.judged import HEAD, MOST_UNKNOWN, Row, judge
from tests.silent.programs import PROGRAMS


def main(arguments: list[str]) -> int:
    """Check all programs and print a table; exit code 1 where a row is not as it should be."""
    words = [a for a in arguments if not a.startswith("--")]
    print(HEAD)
    rows = []
    for program in PROGRAMS:
        if all(word in program.name for word in words):
            rows.append(judge(program))
            print(rows[-1], flush=True)
            _say(rows[-1], "--say" in arguments)
    return _figures(rows)


def _say(row: Row, everything: bool) -> None:
    told = [*row.right.findings, *row.right.undecided]
    if everything or not row.found:
        told += row.wrong.findings
    for text in told:
        print("    " + str(text).replace("\n", "\n    "))


def _figures(rows: list[Row]) -> int:
    count = len(rows)
    nodes, unknown = sum(r.right.nodes for r in rows), sum(r.unknown for r in rows)
    silent, found = sum(r.silent for r in rows), sum(r.found for r in rows)
    known = sum(r.share <= MOST_UNKNOWN for r in rows)
    print(
        f"right programs without a finding: {silent} of {count}; with at most "
        f"{100 * MOST_UNKNOWN:.0f} % of nodes unknown: {known} of {count} ({unknown} of {nodes} "
        f"nodes in all); wrong twins found at their line: {found} of {count}"
    )
    return 0 if rows and all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
