"""Capture each compiled step at its first two calls, and list the constants that moved."""

from __future__ import annotations

from typing import Any

from lockstep.build.moved import Seen, moved, seen
from lockstep.capture.capture import capture_call
from lockstep.errors import LockstepError
from lockstep.report.capture_check import CaptureCheck, Captured
from lockstep.run.key import Bound, contract
from lockstep.run.step import CompiledStep


class TwoBatches(CaptureCheck):
    """Stands in for compiled steps while a script runs; see `CaptureCheck`.

    Between the two calls a step runs eagerly, so that the script prepares its second batch.
    """

    def __init__(self, calls: int) -> None:
        super().__init__(calls)
        self._first: dict[str, Seen] = {}

    def look(self, step: CompiledStep, args: Any, kwargs: Any) -> None:
        """Note a step's first call; compare its second with it."""
        name = step.name
        if name in self.captured:
            return
        try:
            call = step.step.call(args, kwargs)
            bound = Bound(step.step, call)
            graph = capture_call(step.step, call, bound.state)
        except LockstepError as error:
            self.captured[name] = Captured(name, [str(error)])
            return
        now = seen(call, step.fingerprint(call, bound, contract(call, bound)), graph)
        if name not in self._first:
            self._first[name] = now
            return
        found = moved(self._first[name], now)
        texts = [str(error) for error in found.constants]
        nodes, collectives = len(graph.gm.graph.nodes), len(graph.schedule)
        self.captured[name] = Captured(name, texts, nodes, collectives, notes=found.shapes)
