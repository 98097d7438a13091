"""How a rank spent its start: the journal's events as spans of time, by phase."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lockstep.run.modes import TORCH, TORCH_ONE_RANK

PHASES = ("vote", "wait", "capture", "check", "compile", "ship", "load", "first step")
MEANS = {
    "vote": "the ranks agree on what they want, and look for it in the store",
    "wait": "for another rank's build, or its view of the step",
    "capture": "the step becomes one graph",
    "check": "its gradients are checked",
    "compile": "the graph is lowered, compiled and packed",
    "ship": "the bytes are written, sent and confirmed by all ranks",
    "load": "the program is opened; nothing is traced or compiled",
    "first step": "the first call of the program",
}
_STAGES = {"capture": "capture", "check": "check", "compare": "wait"}  # any other is the compiler's
_REHEARSED = ("capture", "check", "compare")  # before the ranks have run a graph beside its step
_OURS = {
    "read": "vote", "agree": "vote", "wait": "wait", "write": "ship", "ship": "ship",
    "confirm": "ship", "load": "load", "rehearse": "wait",
}  # fmt: skip

Event = dict[str, Any]


@dataclass(frozen=True)
class Span:
    """A phase of one rank.

    Args:
        begin: wall-clock seconds, by the rank's own machine.
        seconds: how long.
        program: step and variant, as "train_step v0".
        open: it was not seen to end.
    """

    phase: str
    begin: float
    seconds: float
    program: str
    open: bool = False


def spans_of(events: Iterable[Event], now: float) -> list[Span]:
    """The spans of one rank.

    Args:
        events: of the rank's journal, in order.
        now: until when a phase goes on that has not ended.

    Example:
        >>> ready = {"event": "ready", "time": 9.0, "step": "s", "variant": "v0", "role": "loaded",
        ...          "mode": "on", "seconds": {"wait": 3.0, "load": 1.0, "total": 3.0}}
        >>> [(span.phase, span.begin, span.seconds) for span in spans_of([ready], 9.0)]
        [('wait', 5.0, 3.0), ('load', 8.0, 1.0)]
    """
    spans: list[Span] = []
    pending: list[Event] = []  # what the rank said it does, or waits for, since it was last ready
    first: set[str] = set()
    for event in events:
        name = event["event"]
        if name in ("stage", "waits"):
            pending.append(event)
        elif name == "ready":
            spans += _ready(event)
            pending = []
        elif name in ("fault", "fault_seen", "end"):
            spans += _unfinished(pending, event["time"])
            pending = []
        elif name == "ran" and _ours(event) and program_of(event) not in first:
            first.add(program_of(event))
            begin = event["time"] - event["seconds"]
            spans.append(Span("first step", begin, event["seconds"], program_of(event)))
    return spans + _unfinished(pending, now)


def program_of(event: Event) -> str:
    """Step and variant of an event, as one text."""
    step, _, variant = event.get("topic", "").partition("/")
    return f"{event.get('step') or step} {event.get('variant') or variant}".strip()


def _ours(event: Event) -> bool:
    return event.get("mode") not in (TORCH, TORCH_ONE_RANK)


def _ready(event: Event) -> list[Span]:
    """The phases that end where a rank has its program: length and order are known."""
    seconds, program = event["seconds"], program_of(event)
    parts = list(_parts(event)) if _ours(event) else _torch_parts(seconds)
    whole = seconds["total"] + seconds["load"]
    at = event["time"] - max(whole, sum(part for _, part in parts))
    spans: list[Span] = []
    for phase, part in parts:
        if spans and spans[-1].phase == phase:
            last = spans.pop()
            spans.append(Span(phase, last.begin, last.seconds + part, program))
        elif part > 0:
            spans.append(Span(phase, at, part, program))
        at += part
    return spans


def _parts(event: Event) -> Iterable[tuple[str, float]]:
    stages = dict(event.get("built", {}).get("seconds", {}))
    for name, part in event["seconds"].items():
        if name == "rehearse" and event["role"] == "built":
            before = {name: stages.pop(name) for name in _REHEARSED if name in stages}
            yield from _build_parts(part, before, "check")
        elif name == "build":
            yield from _build_parts(part, stages)
        elif name in _OURS:
            yield _OURS[name], part


def _build_parts(
    whole: float, stages: dict[str, float], rest: str = "compile"
) -> Iterable[tuple[str, float]]:
    left = whole
    for name, part in stages.items():
        yield _STAGES.get(name, "compile"), min(part, left)
        left -= min(part, left)
    yield rest, left  # of a build what packs and signs, of a rehearsal its two runs


def _torch_parts(seconds: dict[str, float]) -> list[tuple[str, float]]:
    compiled = min(seconds["compile"], seconds["total"])
    return [("compile", compiled), ("first step", seconds["total"] - compiled)]


def _unfinished(pending: list[Event], end: float) -> list[Span]:
    """Spans of a rank that never came to have its program, by what it said that it did."""
    spans = []
    for event, after in itertools.zip_longest(pending, pending[1:]):
        until = max(end if after is None else after["time"], event["time"])
        stage = event.get("stage")
        phase = "wait" if stage is None else _STAGES.get(stage, "compile")
        lasted = until - event["time"]
        spans.append(Span(phase, event["time"], lasted, program_of(event), open=after is None))
    return spans
