"""A step and its captured graph run once each on the real inputs, and compared by all ranks.

Nothing that the call may change is other than before; the ranks take the same turns, since both
runs hold collectives.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from lockstep.capture.binding import Call, Step
from lockstep.capture.state import State
from lockstep.errors import LockstepError
from lockstep.fleet.faults import Fault
from lockstep.fleet.judge_eager import judge_eager
from lockstep.fleet.scope import Scope
from lockstep.run.counted import counting_collectives
from lockstep.run.key import Bound
from lockstep.run.outcome import Outcome, Values, differing, outcome, values
from lockstep.run.put_back import Kept
from lockstep.run.rounding import Jitter, beyond
from lockstep.run.session import Session
from lockstep.run.silent import silent
from lockstep.run.variant import Variant

_NOTE = (
    "lockstep: raised while {} ran beside its captured graph, before a program is built; where it "
    'runs out of memory by that alone, leave out ls.compile(eager_check="on")'
)

Keep = Callable[[Any, Call, State], Values]


@dataclass(frozen=True)
class Ran:
    """What one run did: the digests of all it left, its collectives by (op, axis); its values."""

    outcome: Outcome
    counts: Counter[tuple[str, str]]
    values: Values = field(default_factory=dict)


@dataclass
class Seen:
    """What this rank has seen of both, turn by turn; see `judge_eager`."""

    differs: list[str]
    itself: list[str] | None = None
    beyond: list[str] | None = None
    times: float = 0.0


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
        """Run both, and compare; where they differ, both once more, each with itself, and then the
        step with each operator rounding otherwise.

        Returns:
            "result": "equal"; or "rounding" or "not comparable", with "why"; "collectives": how
            many by op and axis; "compared": how many values.

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
        seen = Seen(differing(step.outcome, graph.outcome))
        found = self._agree(1, step, graph, seen)
        if found["result"] == "again":
            one, other = self._eager(kept, values), self._captured(kept, values)
            seen.itself = differing(step.outcome, one.outcome)
            seen.itself += differing(graph.outcome, other.outcome)
            found = self._agree(2, step, graph, seen)
            if found["result"] == "measure":
                jitter = Jitter()
                moved = self._eager(kept, values, jitter).values
                seen.beyond, seen.times = beyond(one.values, other.values, moved, jitter.eps)
                found = self._agree(3, step, graph, seen)
        counts = {f"{op} over {axis}": n for (op, axis), n in sorted(step.counts.items())}
        return {**found, "collectives": counts, "compared": len(step.outcome)}

    def _eager(self, kept: Kept, keep: Keep | None = None, under: Any = None) -> Ran:
        args, kwargs = self._call.arguments(self._call.leaves)
        torch.clear_autocast_cache()  # what is cast in here is not what a later call would cast
        quiet, under = silent(self._step, self._call), under or contextlib.nullcontext()
        with quiet, counting_collectives() as counts, under:
            result = self._step.function(*args, **kwargs)
        torch.clear_autocast_cache()
        return self._left(result, counts, kept, keep)

    def _captured(self, kept: Kept, keep: Keep | None = None) -> Ran:
        with counting_collectives() as counts:
            result = self._graph.run(self._call, self._bound)
        return self._left(result, counts, kept, keep)

    def _left(
        self, result: Any, counts: Counter[tuple[str, str]], kept: Kept, keep: Keep | None
    ) -> Ran:
        found = outcome(result, self._call, self._bound.state)
        copies = keep(result, self._call, self._bound.state) if keep else {}
        kept.put_back()
        return Ran(found, counts, copies)

    def _agree(self, turn: int, step: Ran, graph: Ran, seen: Seen) -> dict[str, Any]:
        value = {
            "step": self._step.name,
            "counts": [
                [*key, step.counts[key], graph.counts[key]]
                for key in sorted({*step.counts, *graph.counts})
                if step.counts[key] != graph.counts[key]
            ],
            **asdict(seen),
        }
        fleet, about = self._here.fleet, f"run {self._step.name} eagerly, beside its graph"
        limit = fleet.state.timing.build
        topic = f"{self._topic}/{turn}"
        found = fleet.agree(topic, value, judge_eager, about, scope=self._scope, limit=limit)
        if "fault" in found:  # of a world of one, where nobody else has to hear
            raise Fault.read(found["fault"]).error()
        return found
