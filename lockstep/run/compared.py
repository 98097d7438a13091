"""One call of a step compared with its captured graph on all ranks, and nothing built of it."""

from __future__ import annotations

from dataclasses import replace

from lockstep.build.fingerprint import Fields
from lockstep.build.toolchain import toolchain
from lockstep.capture.binding import Call
from lockstep.fleet.nowhere import Nowhere
from lockstep.fleet.obtain import Asked
from lockstep.run.admit import Build
from lockstep.run.asking import Asking
from lockstep.run.key import contract
from lockstep.run.session import session
from lockstep.run.step import CompiledStep
from lockstep.run.trial import Trial


def compare(step: CompiledStep, call: Call) -> Fields:
    """Run a call's captured graph beside the step, as before its program is built.

    Collective over the step's ranks. What the call may change is as before; nothing is kept.

    Returns:
        What would stand in the manifest under "eager".

    Raises:
        EagerMismatch: on every rank, the graph does not do what the step does.
        CaptureError: the step cannot be captured.
    """
    here, bound = session(), step.bind(call)
    with here.fleet.guard(f"preparing {step.name}"):
        loose = step.dynamic.loose(call) if step.dynamic.sizes else None
        wanted = step.fingerprint(call, bound, contract(call, bound, loose))
    # Whether its gradients are right is another question, and `lockstep check` alone asks it.
    options = replace(step.options, backend="graph", check="off", eager_check="on")
    sizes = step.dynamic.sizes if loose else ()
    build = Build(step.step, call, bound, wanted, options, here, None, sizes)
    topic, tools, store = f"{step.name}/beside", toolchain("graph"), Nowhere()
    asking = _Comparing(build, store, step.place(), Trial(here, topic, 1, tools, step.scope))
    first = asking.first()
    here.fleet.obtain(
        topic,
        first.contract,
        first.name,
        store,
        first.build,
        second=first.second,
        place=step.place(),
        settle=asking.again,
        line_of=asking.line_of,
        toolchain=tools,
        rehearse=first.rehearse,
        scope=step.scope,
    )
    return asking.last.eager


class _Comparing(Asking):
    """Asks as for a program, and builds none."""

    last: Build

    def _asked(self, build: Build) -> Asked:
        object.__setattr__(self, "last", build)
        return replace(super()._asked(build), build=lambda stage: b"nothing")

    def _tell_missed(self, build: Build) -> None:
        """Nothing was looked for in a store."""
