"""Another time of day: what a trace tells of it is not told again, and is seen to have changed."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_AHEAD = datetime.timedelta(days=1111, hours=7, minutes=13, seconds=17, microseconds=1234)
_SECONDS = ("time", "monotonic", "perf_counter", "process_time")
_NANOSECONDS = ("time_ns", "monotonic_ns", "perf_counter_ns", "process_time_ns")
_OF_NOW = ("localtime", "gmtime", "ctime")  # with no argument, of now


class _Datetime(datetime.datetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime.now(tz) + _AHEAD

    @classmethod
    def today(cls) -> Any:
        return datetime.datetime.today() + _AHEAD

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + _AHEAD


class _Date(datetime.date):
    @classmethod
    def today(cls) -> Any:
        return datetime.date.today() + _AHEAD


@contextlib.contextmanager
def later(functions: Iterable[Any]) -> Iterator[None]:
    """Make it another day and hour while inside, for user code alone.

    Args:
        functions: the user's; their modules may have the clock's functions by names of their own.
    """
    others = _others()
    places = [(function.__globals__, name) for function in functions for name in _names(function)]
    changed: list[tuple[dict[str, Any], str, Any]] = []
    for mapping, name in [*places, *((vars(time), name) for name in vars(time))]:
        other = next((new for old, new in others if mapping.get(name) is old), None)
        if other is not None:
            changed.append((mapping, name, mapping[name]))
    classes = [(vars(datetime), name, getattr(datetime, name)) for name in ("datetime", "date")]
    try:
        for mapping, name, old in [*changed, *classes]:
            mapping[name] = next(new for known, new in others if known is old)
        yield
    finally:
        for mapping, name, old in [*changed, *classes]:
            mapping[name] = old


def _names(function: Any) -> list[str]:
    code = function.__code__
    return [name for name in code.co_names if name in function.__globals__]


def _others() -> list[tuple[Any, Any]]:
    seconds = _AHEAD.total_seconds()
    made: list[tuple[Any, Any]] = [(datetime.datetime, _Datetime), (datetime.date, _Date)]
    made += [(f, _plus(f, seconds)) for f in (getattr(time, name) for name in _SECONDS)]
    made += [(f, _plus(f, int(seconds * 1e9))) for f in (getattr(time, n) for n in _NANOSECONDS)]
    now = time.time
    made += [(f, _of_now(f, now, seconds)) for f in (getattr(time, name) for name in _OF_NOW)]
    strftime, localtime, asctime = time.strftime, time.localtime, time.asctime
    made.append((strftime, lambda form, at=None: strftime(form, at or localtime(now() + seconds))))
    made.append((asctime, lambda at=None: asctime(at or localtime(now() + seconds))))
    return made


def _plus(function: Callable[[], Any], more: Any) -> Callable[[], Any]:
    return lambda: function() + more


def _of_now(function: Any, now: Any, more: float) -> Callable[..., Any]:
    return lambda at=None: function(now() + more if at is None else at)
