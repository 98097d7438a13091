"""A step as one rank makes it alone: its own capture, torch's own compilation and loading.

No store, no other rank, no lowering or loading of Lockstep's: Inductor compiles the captured graph
in this process, and torch runs the module that it wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lockstep import _compat
from lockstep.build.artifact import Artifact
from lockstep.build.inductor_backend import _OPTIONS
from lockstep.build.scalars import lift_weights
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.graph import StepGraph
from lockstep.run.key import Bound, contract
from lockstep.run.variant import Variant


class OwnCompile:
    """Call it as the step: every rank compiles the graph that it has captured itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._step = Step(function)
        self._variants: dict[str, Variant] = {}
        self._bound: Bound | None = None

    def __call__(self, *args: Any) -> Any:
        call = self._step.call(args, {})
        if self._bound is None or not self._bound.holds(call):
            self._bound = Bound(self._step, call)
        key = json.dumps(contract(call, self._bound))  # another model of the same form fits too
        if key not in self._variants:
            graph = capture_call(self._step, call, self._bound.state)
            manifest = {"contract": graph.contract()}  # which tensor goes where; no code is in it
            self._variants[key] = Variant(Artifact(manifest, {}, ""), compiled(graph), "own")
        return self._variants[key].run(call, self._bound)


def compiled(graph: StepGraph) -> Callable[[list[Any]], Sequence[Any]]:
    """Compile a graph with Inductor as `torch.compiler.precompile` does; torch loads the result."""
    from torch._inductor import load_from_python

    lift_weights(graph.gm)  # torch cannot compile a weight that is read at each call
    with _compat.inductor_options(_OPTIONS):
        call = load_from_python(_compat.compile_to_python(graph.gm, graph.fakes), None)
    without_autocast = _compat.without_autocast()

    def run(inputs: list[Any]) -> Sequence[Any]:
        with torch.no_grad(), without_autocast():
            return call(inputs)

    return run
