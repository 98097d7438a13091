"""Helpers in a module of their own: one that is called through the module, some by name."""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

REGISTRY: dict[str, Any] = {}
FLOOR = 0.01
SLOPES = SimpleNamespace(left=0.1, right=0.9, note="slopes")
JOIN = operator.add


def register(name: str) -> Any:
    def keep(function: Any) -> Any:
        REGISTRY[name] = function
        return function

    return keep


def clipped(x: Any, low: float, high: float) -> Any:
    return JOIN(x.clamp(low, high), FLOOR)


def halved(x: Any) -> Any:
    return x / 2


def thirded(x: Any) -> Any:
    return x / 3


def late(x: Any) -> Any:
    return x * SLOPES.left + x.relu() * SLOPES.right


class deep:
    amount = 0.05

    @staticmethod
    def offset(value: float) -> float:
        return value * deep.amount


def foreign(x: Any) -> Any:
    import tinylib

    return tinylib.scaled(x)
