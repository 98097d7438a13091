"""Functions with a cache that holds a number or a stand-in of the trace: `lru_cache` and kin.

Both belong to one trace. A later call would get them from the cache, eager ones too. A stand-in is
forgotten, since what it was made of is in the graph; a rank that is kept is refused.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from typing import Any

from lockstep import _compat
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.origin import is_torch_file, short_path
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_CACHED = type(functools.lru_cache(lambda: None))


def emptied(coordinates: Coordinates) -> list[Any]:
    """Empty every cache that holds one of these numbers; returns the functions."""
    if not coordinates:
        return []
    found = [o for o in gc.get_objects() if type(o) is _CACHED and _holds(o, coordinates)]
    for function in found:
        function.cache_clear()
    return found


def forget_stand_ins() -> None:
    """Empty every cache that holds a stand-in, but torch's own, which know how to tell."""
    for function in [o for o in gc.get_objects() if type(o) is _CACHED]:
        code = getattr(function.__wrapped__, "__code__", None)
        ours = code is None or not is_torch_file(code.co_filename)
        if ours and any(map(_compat.is_fake, _values(function))):
            function.cache_clear()


def refuse_cached(functions: list[Any]) -> None:
    """Refuse a step that has put its rank into a cache.

    Raises:
        CaptureError: names the function, at its definition.
    """
    for function in functions:
        code = function.__wrapped__.__code__
        refuse(
            CaptureError(
                f"the step keeps its rank in a cache, that of {function.__qualname__}",
                where=f"{short_path(code.co_filename)}:{code.co_firstlineno}",
                why="the number is of this capture alone, and every later call would get it",
                fix="leave the cache out: a step reads its rank once, while it is captured",
            )
        )


def _holds(function: Any, coordinates: Coordinates) -> bool:
    return any(coordinates.knows(_compat.expression(value)) for value in _values(function))


def _values(function: Any) -> Iterator[Any]:
    for held in gc.get_referents(function):
        yield held
        if isinstance(held, dict):
            yield from held.values()
        elif isinstance(held, (tuple, list)):
            yield from held
