"""The project's own programs of `tests/fault_cases`, as a table beside the peer's."""

from __future__ import annotations

from collections.abc import Callable

from tests.fault_cases import expected, peer
from tests.fault_cases.expected import EXPECTED, Expected
from tests.fault_cases.judged import Figures, Outcome, figures, judge
from tests.fault_cases.programs import PAIRS, RIGHT, WRONG
from tests.fault_cases.training import Program


def run(say: bool) -> bool:
    """Check every program and print rows and figures; returns whether they hold."""
    beside: list[dict[str, str]] = []
    print(f"\n{'program':<32} {'it is':<6} {'said':<12} {'line':<5} {'spmd_types':<18} {'s':>5}")
    battery = [(name, make(), None) for name, make in RIGHT.items()]
    battery += [(name, make(), EXPECTED[name]) for name, make in WRONG.items()]
    first = [_judged(*program, say, beside) for program in battery]
    pairs = [(n, make(wrong), expected.PAIRS[n] if wrong else None) for n, make, wrong in _pairs()]
    second = [_judged(*program, say, []) for program in pairs]
    print()
    _tell_peer(beside)
    held, own = figures(second), figures(first)
    print("kinds written after the checker:", _words(held))
    print("own programs:", _words(own))
    return own.hold and held.hold


def _pairs() -> list[tuple[str, Callable[[bool], Program], bool]]:
    return [(name, make, wrong) for name, make in PAIRS.items() for wrong in (False, True)]


def _judged(
    name: str, program: Program, wanted: Expected | None, say: bool, beside: list[dict[str, str]]
) -> Outcome:
    outcome, told = judge(name, program, wanted), peer.said(program)
    beside += [told] if told and wanted is None else []
    print(_row(outcome, told), flush=True)
    for finding in outcome.findings if say else ():
        print("    " + str(finding).replace("\n", "\n    "))
    return outcome


def _words(found: Figures) -> str:
    return (
        f"{found.silent} of {found.right} right ones silent, {found.flagged} of {found.wrong} "
        f"wrong ones flagged, line and axis in {found.placed} of {found.lines}"
    )


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
