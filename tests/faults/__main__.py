"""Check every case of a folder, print a table and the figures; exit 0 only if they hold.

    python -m tests.faults [FOLDER] [--say]

FOLDER holds cases as `../shared/faults` does. Without one it is that folder's cases, where it is
there, and the project's own programs of `tests/fault_cases`. `--say` prints the findings.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults import battery
from tests.faults.cases import HERE, adapter, cases_in
from tests.faults.expected import PEER, peer_said
from tests.faults.judged import Outcome, judge
from tests.faults.pasted import TOLERANCE, worst_errors

FIX_S = 30.0  # a fix that takes longer counts for none
DEFAULT = HERE.parents[2] / "shared" / "faults"


def main(arguments: list[str]) -> int:
    """Run all cases; return the exit code."""
    say = "--say" in arguments
    folders = [a for a in arguments if not a.startswith("--")]
    if folders:
        return int(not _cases(Path(folders[0]).resolve(), say))
    there = DEFAULT.is_dir()
    if not there:
        print("no folder of cases beside this project: its own programs alone")
    given = _cases(DEFAULT.resolve(), say) if there else True
    own = battery.run(say)
    return int(not (given and own))


def _cases(folder: Path, say: bool) -> bool:
    """Check a folder's cases, print rows and figures; returns whether they hold."""
    cases, ours = cases_in(folder), adapter()
    outcomes = []
    head = f"{'case':<44} {'wrong':<12} {'line':<5} {'right':<7} {'fix':<9}"
    print(f"{head} {'spmd_types':<20} {'s':>5}")
    for case in cases:
        outcome = judge(case, ours)
        outcomes.append(outcome)
        print(_row(outcome, peer_said(case)), flush=True)
        if say:
            for finding in (*outcome.wrong, *outcome.right):
                print("    " + str(finding).replace("\n", "\n    "))
    return hold(outcomes, _pasted(folder, outcomes))


def _row(o: Outcome, peer: str) -> str:
    placed = {True: "yes", False: "no", None: "-"}[o.placed]
    flagged = o.error or (f"flagged ({len(o.wrong)})" if o.flagged else "MISSED")
    silent = "silent" if o.silent else "ALARM"
    fix = "verified" if o.fix else "-"
    ours = f"{o.name:<44} {flagged:<12} {placed:<5} {silent:<7} {fix:<9}"
    return f"{ours} {peer:<20} {o.seconds:5.1f}"


def _pasted(folder: Path, outcomes: list[Outcome]) -> dict[str, float]:
    """The largest error of each case with its verified fix pasted in, on real ranks."""
    found = {o.name: o.fix for o in outcomes if o.fix is not None}
    fixes = {name: (f.fix_line or f.line, f.fix or "") for name, f in found.items()}
    return worst_errors(folder, fixes) if fixes else {}


def hold(outcomes: list[Outcome], errors: dict[str, float]) -> bool:
    """Print the figures; returns whether they are as they should be.

    Args:
        errors: case -> its largest error on real ranks, with its verified fix pasted in.
    """
    count = len(outcomes)
    verified = sum(o.fix is not None and o.seconds <= FIX_S for o in outcomes)
    flagged = sum(o.flagged and o.few for o in outcomes)
    silent = sum(o.silent for o in outcomes)
    asked = [o for o in outcomes if o.placed is not None]
    placed = sum(bool(o.placed) for o in asked)
    wrong = [name for name, error in errors.items() if not error < TOLERANCE]
    slow = max((o.seconds for o in outcomes), default=0.0)
    peer = "; ".join(f"{name} {share:.0%}" for name, share in PEER.items())
    print(f"\nspmd_types 0.3.1, on 43 cases of these kinds: {peer}")
    print(f"wrong programs flagged, at most 2 findings each: {flagged} of {count}")
    print(f"right twins silent: {silent} of {count}")
    if asked:
        print(f"line and axis as RIGHT asks: {placed} of {len(asked)}")
    print(f"with a verified fix: {verified} of {count}; both programs in at most {slow:.0f} s")
    print(f"wrong on real ranks with that fix pasted in: {', '.join(wrong) or 'none'}")
    lines = placed >= len(asked) - 1
    fixes = not asked or verified * 18 >= 13 * count
    return flagged == silent == count > 0 and lines and fixes and not wrong


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
