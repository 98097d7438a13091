"""Loss, step time and whatever else a run has recorded by step, as curves of few points."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

POINTS, APART = 400, 8  # of a curve; ranks that are drawn each for itself
STEP_TIME = "step time, s"
_NOT = {"time", "event", "rank", "world", "torch", "device", "devices", "index", "flag", "mode"}

Event = dict[str, Any]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line of a chart; `low` and `high` where it is the mean of many ranks."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Chart:
    """What was recorded under one name, the time of a step beside it."""

    name: str
    series: list[Series]


def charts_of(events: dict[int, list[Event]]) -> list[Chart]:
    """A chart for each name that the ranks recorded, the loss first.

    Args:
        events: by rank, in order.
    """
    found: dict[str, dict[int, Points]] = {}
    for rank, own in events.items():
        for name, points in _recorded(own).items():
            found.setdefault(name, {})[rank] = points
    names = sorted(found, key=lambda name: ("loss" not in name, name == STEP_TIME, name))
    return [Chart(name, _series(found[name])) for name in names]


def _recorded(own: list[Event]) -> dict[str, Points]:
    found: dict[str, Points] = {}
    last: Event | None = None
    for event in own:
        if event["event"] != "record":
            continue
        step = event.get("step", 0)
        for name, value in event.items():
            if name not in _NOT and name != "step" and isinstance(value, (int, float)):
                found.setdefault(name, []).append((step, value))
        if last is not None and step > last.get("step", 0):
            took = (event["time"] - last["time"]) / (step - last.get("step", 0))
            found.setdefault(STEP_TIME, []).append((step, round(took, 4)))
        last = event
    return found


def _series(by_rank: dict[int, Points]) -> list[Series]:
    if len(by_rank) <= APART:
        return [_plain(f"rank {rank}", thinned(sorted(points))) for rank, points in by_rank.items()]
    at: dict[float, list[float]] = {}
    for points in by_rank.values():
        for step, value in points:
            at.setdefault(step, []).append(value)
    steps = sorted(at)
    mean = thinned([(step, sum(at[step]) / len(at[step])) for step in steps])
    low = thinned([(step, min(at[step])) for step in steps])
    high = thinned([(step, max(at[step])) for step in steps])
    x, y = [point[0] for point in mean], [point[1] for point in mean]
    label = f"mean of {len(by_rank)} ranks"
    return [Series(label, x, y, [point[1] for point in low], [point[1] for point in high])]


def _plain(label: str, points: Points) -> Series:
    return Series(label, [point[0] for point in points], [point[1] for point in points], [], [])


def thinned(points: Points, most: int = POINTS) -> Points:
    """At most so many points, each the mean of its neighbours.

    Example:
        >>> thinned([(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)], most=2)
        [(0.5, 2.0), (2.5, 6.0)]
    """
    if len(points) <= most:
        return points
    ends = [len(points) * i // most for i in range(most + 1)]
    parts = [points[a:b] for a, b in itertools.pairwise(ends)]
    return [
        (sum(p[0] for p in part) / len(part), sum(p[1] for p in part) / len(part)) for part in parts
    ]
