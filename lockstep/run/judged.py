"""The check of a step at its build: asks the checker, refuses what is found, keeps what was said.

Imported where something is built, and nowhere else: a rank that loads has no checker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.build.fingerprint import Fields
from lockstep.capture.binding import Call, Step
from lockstep.capture.checking import Checking
from lockstep.capture.early import Early
from lockstep.checker.again import again
from lockstep.checker.built import Built, judge_built
from lockstep.checker.finding import Finding, Report
from lockstep.errors import CheckError, LockstepError
from lockstep.run.key import Bound
from lockstep.run.options import Options
from lockstep.run.session import Here

MOST_FINDINGS = 8
UNREDUCED = ("LS514", "LS550")


def judged(
    checking: Checking,
    step: Step,
    call: Call,
    bound: Bound,
    options: Options,
    apart: Mapping[str, frozenset[str]],
    here: Here,
    early: Sequence[Early] = (),
) -> Fields:
    """Judge what a capture has noted, and for "full" the same call on simulated ranks.

    Args:
        apart: parameter -> axes along which the ranks hold other values of it.
        early: ints of each rank.

    Returns:
        What stands in the manifest under "check"; "types" and "cotangents" go with the graph.

    Raises:
        CheckError: something definite was found.
    """
    begin = time.monotonic()
    built = _by_types(checking, bound, options, apart, here)
    reports = [built.report]
    # Ranks of other roles run other programs: this one says nothing about the axis between them.
    _refuse(step.name, [f for f in built.report.findings if f.axis not in options.roles])
    _say_open(step.name, built, options, here)
    if options.check == "full":
        from lockstep.run.full import full

        reports.append(full(step, call, bound, options, apart, early))
        _refuse(step.name, reports[-1].findings)
    return {
        "mode": options.check,
        "established": [line for report in reports for line in report.established],
        "undecided": [
            *(line for report in reports for line in report.undecided),
            *(f"what ranks along {axis} make of each other's values" for axis in options.roles),
        ],
        "values": built.report.nodes,
        "unknown": built.unknown,
        "no rule for": dict(built.report.unknown_ops),
        "pending": dict(options.pending),
        "intended": checking.notes.reasons(),
        "replicas": {axis: built.replicas[axis] for axis in options.data if axis in built.replicas},
        "own": {axis: names for axis, names in built.own.items() if names},
        "seconds": round(time.monotonic() - begin, 3),
        "types": built.types,
        "cotangents": built.cotangents,
    }


def fault_in(
    gm: Any,
    checking: Checking,
    bound: Bound,
    options: Options,
    apart: Mapping[str, frozenset[str]],
) -> str:
    """What the types find in a graph that a pass made of a judged one; empty: no fault."""
    try:
        reductions = options.reductions
        made = again(checking, gm)
        built = judge_built(made, bound.state, options.mesh, options.data, reductions, apart)
    except Exception as error:
        return f"the types could not be asked: {type(error).__name__}: {error}"
    return next((f"{one.code} {one.what}" for one in built.report.findings), "")


def _by_types(
    checking: Checking,
    bound: Bound,
    options: Options,
    apart: Mapping[str, frozenset[str]],
    here: Here,
) -> Built:
    """What the types say; that they cannot be asked is no fault of the step, and is told."""
    try:
        reductions = options.reductions
        return judge_built(checking, bound.state, options.mesh, options.data, reductions, apart)
    except LockstepError:
        raise
    except Exception as error:
        told = f"the types could not be asked: {type(error).__name__}: {error}"
        here.say(f"{told}; the step is built unchecked, `lockstep check SCRIPT` checks it")
        return Built(Report(undecided=[told]), {}, {}, {})


def _say_open(name: str, built: Built, options: Options, here: Here) -> None:
    """Say how much of a step the types do not know, along axes that are no data axes.

    Along those, a gradient of the rank's own batch is followed without types.
    """
    for axis, count in built.unknown.items():
        if count and axis not in (*options.data, *options.roles):
            here.say(
                f"{name}: the types of {count} of {built.report.nodes} values along {axis} are not "
                "known at the build; `lockstep check SCRIPT` judges them all"
            )


def _refuse(name: str, findings: list[Finding]) -> None:
    if not findings:
        return
    texts = [str(finding) for finding in findings[:MOST_FINDINGS]]
    left = len(findings) - len(texts)
    kinds = "fault" if len(findings) == 1 else "faults"
    partial = [f for f in findings if f.axis and f.code in UNREDUCED]
    way = "mean" if partial and "mean" in partial[0].got else "sum"
    later = [
        text
        for f in partial
        for text in (
            f'ls.compile(pending={{"{f.axis}": "ddp {way}"}}) if it is reduced after the step',
            f'ls.type_parameters(model, {{"*": {{"{f.axis}": ls.V}}}}) if each rank has its own',
        )
    ]
    raise CheckError(
        f"the check of {name} found {len(findings)} {kinds}: no artifact is made",
        where=findings[0].line or None,
        got="\n".join(texts + [f"and {left} more"] * (left > 0)),
        why="the step would train on gradients that are not the derivative of its loss",
        fix=[
            "mend it, and start again",
            *dict.fromkeys(later),
            'ls.compile(check="off") runs it as it is; the manifest says so',
        ],
    )
