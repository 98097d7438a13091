"""Right programs of other people's layers are silent; each collective that is left out is found.

    python -m tests.clients [WORD] [--say]

WORD: those programs alone whose name holds it. `--say` prints the findings. Needs the packages of
`pip install -e '.[dev]'`.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path

from tests.clients.judged import Judgement, judge, left_out

NEEDED = {"transformers": "transformers", "megatron.core": "megatron-core"}
MOST_UNKNOWN, MOST_SHIM = 0.02, 15


def missing() -> list[str]:
    """The packages that are not installed."""
    found = []
    for module, package in NEEDED.items():
        try:
            here = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # what holds it is missing
            here = False
        if not here:
            found.append(package)
    return found


def main(arguments: list[str]) -> int:
    """Run all programs; return the exit code."""
    lacking = missing()
    if lacking:
        print(f"not installed: {', '.join(lacking)}; pip install -e '.[dev]'")
        return 2
    warnings.filterwarnings("ignore")  # the packages' own, about kernels and devices
    from tests.clients import language, megatron, shim

    say = "--say" in arguments
    word = next((a for a in arguments if not a.startswith("--")), "")
    shim_text = Path(shim.__file__).read_text()
    print(f"the shim, {len(shim_text.splitlines())} lines:\n\n{_indented(shim_text)}\n")
    right, wrong = [], []
    heads = f"{'nodes':>5} {'findings':>8} {'unknown':>7} {'undecided':>9} {'s':>5}"
    print(f"{'program':<42} {'mesh':<5} {heads}")
    for program in [*language.PROGRAMS, *megatron.PROGRAMS]:
        if word in program.name:
            right.append(judge(program))
            print(_right_row(right[-1]), flush=True)
            _say(right[-1], say or not right[-1].silent)
    print(f"\n{'left out':<26} {'called at':<48} {'found':<7} {'named':<8} at")
    for judged in right:
        if not judged.called:
            continue
        print(judged.program.name)
        for place in range(len(judged.called)):
            wrong.append(left_out(judged, place))
            print(_wrong_row(wrong[-1]), flush=True)
            _say(wrong[-1], say or not wrong[-1].named)
    return _figures(right, wrong, len(shim_text.splitlines()))


def _right_row(j: Judgement) -> str:
    mesh = ", ".join(f"{axis}={size}" for axis, size in j.program.mesh.items())
    told = ", ".join(f"{op} ({n})" for op, n in j.report.unknown_ops.items())
    start = f"{j.program.name:<42} {mesh:<5} {j.report.nodes:>5} {len(j.report.findings):>8}"
    return f"{start} {j.unknown:>7.1%} {len(j.report.undecided):>9} {j.seconds:>5.1f}  {told}"


def _wrong_row(j: Judgement) -> str:
    assert j.without is not None
    what = f"{j.without.name}{', backward' if j.without.backward else ''}"
    at = ", ".join(finding.line or "no line" for finding in j.report.findings)
    found = "found" if j.report.findings else "MISSED"
    short = str(j.without.places[0]).removeprefix("megatron/core/")
    return f"  {what:<34} {short:<38} {found:<7} {j.named or 'NO LINE':<8} {at}"


def _say(judged: Judgement, say: bool) -> None:
    if say:
        print(_indented("\n".join(map(str, judged.report.findings))))


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def _figures(right: list[Judgement], wrong: list[Judgement], shim: int) -> int:
    silent = sum(j.silent for j in right)
    worst = max((j.unknown for j in right), default=1.0)
    counted = all(j.counted for j in right)
    found = sum(bool(j.report.findings) for j in wrong)
    named = sum(bool(j.named) for j in wrong)
    headline = sum(j.named == "line" for j in wrong)
    print()
    print(f"lines of the shim: {shim}, of at most {MOST_SHIM}")
    print(f"every collective of the steps was left out once: {'yes' if counted else 'NO'}")
    print(f"of those named at its line {headline}, among the lines to see {named - headline}")
    print(
        f"right programs without a finding: {silent} of {len(right)}; unknown to the types at most "
        f"{worst:.1%} of nodes; collectives left out and found: {found} of {len(wrong)}, named in "
        f"the package or at the call: {named}"
    )
    holds = silent == len(right) and worst <= MOST_UNKNOWN and counted and shim <= MOST_SHIM
    return 0 if holds and found == named == len(wrong) and right else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
