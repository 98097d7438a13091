"""A step as one rank makes it alone: its own capture and compilation, no store, no other rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import lower
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.run.key import Bound, contract
from lockstep.run.loader import load_program
from lockstep.run.variant import Variant


class OwnCompile:
    """Call it as the step: every rank compiles the graph that it has captured itself."""

    def __init__(self, function: Callable[..., Any], backend: str) -> None:
        self._step, self._backend = Step(function), backend
        self._variants: dict[str, Variant] = {}
        self._bound: Bound | None = None

    def __call__(self, *args: Any) -> Any:
        call = self._step.call(args, {})
        if self._bound is None or not self._bound.holds(call):
            self._bound = Bound(self._step, call)
        key = json.dumps(contract(call, self._bound))  # another model of the same form fits too
        if key not in self._variants:
            self._variants[key] = self._make(call, self._bound)
        return self._variants[key].run(call, self._bound)

    def _make(self, call: Any, bound: Bound) -> Variant:
        graph = capture_call(self._step, call, bound.state)
        artifact = pack({"contract": graph.contract()}, lower(graph, self._backend))
        artifact = Artifact.from_bytes(artifact.to_bytes())
        return Variant(artifact, load_program(artifact), "own")
