"""The project's own programs of `tests/fault_cases`, as a table beside the peer's."""

from __future__ import annotations

from tests.fault_cases import peer
from tests.fault_cases.expected import EXPECTED
from tests.fault_cases.judged import Outcome, figures, judge
from tests.fault_cases.programs import RIGHT, WRONG


def run(say: bool) -> bool:
    """Check every program and print rows and figures; returns whether they hold."""
    outcomes: list[Outcome] = []
    beside: list[dict[str, str]] = []
    print(f"\n{'program':<32} {'it is':<6} {'said':<12} {'line':<5} {'spmd_types':<18} {'s':>5}")
    for name, make in {**RIGHT, **WRONG}.items():
        program = make()
        outcome = judge(name, program, EXPECTED[name] if name in WRONG else None)
        told = peer.said(program)
        beside += [told] if told and name in RIGHT else []
        outcomes.append(outcome)
        print(_row(outcome, told), flush=True)
        for finding in outcome.findings if say else ():
            print("    " + str(finding).replace("\n", "\n    "))
    print()
    _tell_peer(beside)
    found = figures(outcomes)
    print(
        f"own programs: {found.silent} of {found.right} right ones silent, {found.flagged} of "
        f"{found.wrong} wrong ones flagged, line and axis in {found.placed} of {found.lines}"
    )
    return found.hold


def _tell_peer(beside: list[dict[str, str]]) -> None:
    """What it says of the right programs: of a wrong one it may say no more."""
    for mode in beside[0] if beside else ():
        refused = [told[mode] for told in beside if told[mode]]
        print(f"spmd_types 0.3.1, {mode}: refuses {len(refused)} of {len(beside)} right programs")
        if refused:
            print(f"    {refused[0][:150]}")


def _row(o: Outcome, told: dict[str, str]) -> str:
    truth = "right" if o.expected is None else "wrong"
    quiet = "silent" if o.expected is None else "MISSED"
    loud = f"{'ALARM' if o.expected is None else 'flagged'} ({len(o.findings)})"
    placed = {True: "yes", False: "no", None: "-"}[o.placed]
    beside = ", ".join("refused" if text else "accepted" for text in told.values()) or "n/a"
    said = o.error or (loud if o.flagged else quiet)
    return f"{o.name:<32} {truth:<6} {said:<12} {placed:<5} {beside:<18} {o.seconds:5.1f}"
