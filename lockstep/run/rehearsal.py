"""A step and its captured graph run once each on the real inputs, and compared by all ranks.

Nothing that the call may change is other than before; the ranks take the same turns, since both
runs hold collectives.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.capture.binding import Call, Step
from lockstep.errors import LockstepError
from lockstep.fleet.faults import Fault
from lockstep.fleet.judge_eager import judge_eager
from lockstep.fleet.scope import Scope
from lockstep.run.counted import counting_collectives
from lockstep.run.key import Bound
from lockstep.run.outcome import Outcome, differing, outcome
from lockstep.run.put_back import Kept
from lockstep.run.session import Session
from lockstep.run.silent import silent
from lockstep.run.variant import Variant

_NOTE = (
    "lockstep: raised while {} ran beside its captured graph, before a program is built; where it "
    'runs out of memory by that alone, leave out ls.compile(eager_check="on")'
)


@dataclass(frozen=True)
class Ran:
    """What one run did: the digests of all it left, and its collectives by (op, axis)."""

    outcome: Outcome
    counts: Counter[tuple[str, str]]


class Rehearsal:
    """One call, and the graph that was captured of it.

    Args:
        graph: its program by the back end "graph", with no effects.
        topic: for what the ranks post; used once.
        scope: the ranks that share the program; None: all.
    """

    def __init__(
        self,
        step: Step,
        call: Call,
        bound: Bound,
        graph: Variant,
        here: Session,
        topic: str,
        scope: Scope | None,
    ) -> None:
        self._step, self._call, self._bound, self._graph = step, call, bound, graph
        self._here, self._topic, self._scope = here, topic, scope

    def run(self) -> dict[str, Any]:
        """Run both, and compare; where they differ, both once more, each with itself.

        Returns:
            "result": "equal", or "not comparable" with "why"; "collectives": how many by op and
            axis; "compared": how many values.

        Raises:
            EagerMismatch: on every rank, they differ.
            Exception: the step's own; every other rank hears of it.
        """
        with self._here.fleet.guard(f"running {self._step.name} eagerly, beside its graph"):
            self._graph.verify(self._call, self._bound)
            kept = Kept(self._step, self._call, self._bound.state)
            try:
                return self._compared(kept)
            except BaseException as error:
                kept.put_back()
                if not isinstance(error, LockstepError):
                    error.add_note(_NOTE.format(self._step.name))
                raise
            finally:
                self._bound.plans.pop(self._graph, None)

    def _compared(self, kept: Kept) -> dict[str, Any]:
        step, graph = self._eager(kept), self._captured(kept)
        found = self._agree(1, step, graph, None)
        if found["result"] == "again":
            itself = differing(step.outcome, self._eager(kept).outcome)
            itself += differing(graph.outcome, self._captured(kept).outcome)
            found = self._agree(2, step, graph, itself)
        counts = {f"{op} over {axis}": n for (op, axis), n in sorted(step.counts.items())}
        return {**found, "collectives": counts, "compared": len(step.outcome)}

    def _eager(self, kept: Kept) -> Ran:
        args, kwargs = self._call.arguments(self._call.leaves)
        torch.clear_autocast_cache()  # what is cast in here is not what a later call would cast
        with silent(self._step, self._call), counting_collectives() as counts:
            result = self._step.function(*args, **kwargs)
        torch.clear_autocast_cache()
        return self._left(result, counts, kept)

    def _captured(self, kept: Kept) -> Ran:
        with counting_collectives() as counts:
            result = self._graph.run(self._call, self._bound)
        return self._left(result, counts, kept)

    def _left(self, result: Any, counts: Counter[tuple[str, str]], kept: Kept) -> Ran:
        found = outcome(result, self._call, self._bound.state)
        kept.put_back()
        return Ran(found, counts)

    def _agree(self, turn: int, step: Ran, graph: Ran, itself: list[str] | None) -> dict[str, Any]:
        value = {
            "step": self._step.name,
            "differs": differing(step.outcome, graph.outcome),
            "counts": [
                [*key, step.counts[key], graph.counts[key]]
                for key in sorted({*step.counts, *graph.counts})
                if step.counts[key] != graph.counts[key]
            ],
            "itself": itself,
        }
        fleet, about = self._here.fleet, f"run {self._step.name} eagerly, beside its graph"
        limit = fleet.state.timing.build
        topic = f"{self._topic}/{turn}"
        found = fleet.agree(topic, value, judge_eager, about, scope=self._scope, limit=limit)
        if "fault" in found:  # of a world of one, where nobody else has to hear
            raise Fault.read(found["fault"]).error()
        return found
