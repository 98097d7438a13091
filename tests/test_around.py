"""What is around a trace leaves nothing of itself in the graph."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.profiler import record_function

from lockstep.capture.around import unprofiled
from lockstep.capture.binding import Step
from lockstep.capture.capture import capture_call
from lockstep.capture.checking import Checking
from lockstep.capture.state import collect


def named(x: torch.Tensor) -> torch.Tensor:
    with record_function("doubled"):
        return x * 2


def operators() -> list[str]:
    """What a check keeps of it, dead code included."""
    step = Step(named)
    call = step.call((torch.ones(2),), {})
    graph = capture_call(step, call, collect(call), Checking())
    return [str(node.target) for node in graph.gm.graph.nodes if node.op == "call_function"]


def test_names_for_a_profiler_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert operators() == ["aten.mul.Tensor"]
    monkeypatch.setattr("lockstep.capture.around.swapped", lambda _: contextlib.nullcontext())
    assert any("record_function" in name for name in operators())


def test_outside_of_a_trace_they_are_told() -> None:
    with unprofiled():
        named(torch.ones(2))
    with torch.profiler.profile() as seen:
        named(torch.ones(2))
    assert "doubled" in [event.key for event in seen.key_averages()]
