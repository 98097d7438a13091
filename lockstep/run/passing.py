"""The passes of a step at its build: applied to what was captured, judged by the types anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.build.fingerprint import Fields
from lockstep.capture.checking import Checking
from lockstep.capture.graph import StepGraph
from lockstep.capture.passes import schedule
from lockstep.spmd.mesh import WORLD

if TYPE_CHECKING:
    from lockstep.run.admit import Build


@dataclasses.dataclass(frozen=True)
class Passed:
    """The graph that is lowered; and by pass what it did, or why it is left out."""

    graph: StepGraph
    told: Fields


def passed(build: Build, graph: StepGraph, checking: Checking | None) -> Passed:
    """Apply the passes that a build's options ask for.

    Args:
        graph: as it was captured; it is not changed.
        checking: its notes, by which the types judge what a pass makes; None: they do not.
    """
    options, here = build.options, build.here
    if not options.passes:
        return Passed(graph, {})
    from lockstep.build.passes.apply import Setting, applied

    setting = Setting(graph.fake_mode, {**options.sizes, WORLD: here.world})
    gm, told = applied(graph.gm, options.passes, setting, _faults(build, checking))
    for name, word in told.items():
        if isinstance(word, str):
            here.say(f"{build.step.name}: the pass {name} is {word}")
    if gm is graph.gm:
        return Passed(graph, told)
    return Passed(dataclasses.replace(graph, gm=gm, schedule=schedule(gm)), told)


def _faults(build: Build, checking: Checking | None) -> Callable[[Any], str]:
    """What the types say of a graph that a pass made."""
    options, replicas = build.options, build.replicas
    if checking is None or all(size == 1 for size in options.sizes.values()):
        return lambda gm: ""
    from lockstep.run.judged import fault_in

    apart = replicas.apart() if replicas is not None else {}
    return lambda gm: fault_in(gm, checking, build.bound, options, apart)
