"""What `ls.check` and `ls.compile` are both told, read alike: axes, ways to reduce, the step."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from lockstep.errors import UsageError

# How gradients are reduced after the step, in the user's words.
WAYS = {"ddp mean": "mean", "ddp sum": "sum", "mean": "mean", "sum": "sum"}


def axis_names(data: Any, who: str = "") -> tuple[str, ...]:
    """The names of the axes in `data`: one, several, or None.

    Raises:
        UsageError: it is something else.

    Example:
        >>> axis_names("dp"), axis_names(["dp", "cp"]), axis_names(None)
        (('dp',), ('dp', 'cp'), ())
    """
    if data is None or isinstance(data, str):
        return () if data is None else (data,)
    if not isinstance(data, Iterable):
        raise UsageError(f"{who}data={data!r}", want='an axis or several, as "dp" or ("dp", "cp")')
    return tuple(data)


def way_of(axis: Any, words: Any, who: str = "pending:") -> str:
    """What happens to gradients along an axis after the step: "mean" or "sum".

    Raises:
        UsageError: other words.
    """
    if not isinstance(words, str) or words not in WAYS:
        raise UsageError(f"{who} {axis}={words!r}", want=f"one of {', '.join(WAYS)}")
    return WAYS[words]


def ways_by_axis(pending: Any, who: str = "") -> dict[Any, Any]:
    """`pending` as a dict of its own; None is empty.

    Raises:
        UsageError: it is no mapping.
    """
    if pending is None:
        return {}
    if not isinstance(pending, Mapping):
        raise UsageError(f"{who}pending={pending!r}", want='ways by axis, as {"dp": "ddp mean"}')
    return dict(pending)


def refuse_deferred(function: Any, what: str) -> None:
    """Refuse a function whose call runs nothing yet: `async def`, or one with a `yield`.

    Args:
        function: anything that can be called.
        what: what it is, for the text, such as "ls.compile: the step".

    Raises:
        UsageError: it is one.

    Example:
        >>> def batches(): yield 1
        >>> refuse_deferred(batches, "ls.check: make")
        Traceback (most recent call last):
        lockstep.errors.UsageError: LS001: ls.check: make is a generator
          got  batches, which yields
          want a plain function: calling this one runs nothing of it
    """
    called = getattr(function, "__call__", None)  # noqa: B004
    for each in (function, called, getattr(function, "forward", None)):
        kind = _kind(each)
        if kind is not None:
            name = getattr(each, "__qualname__", type(function).__name__)
            raise UsageError(
                f"{what} is a {kind}",
                got=f"{name}, which {'yields' if kind == 'generator' else 'is async'}",
                want="a plain function: calling this one runs nothing of it",
            )


def _kind(function: Any) -> str | None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(function) else None
