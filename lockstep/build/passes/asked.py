"""Which passes a step has: by name, each with the bytes that it may use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.errors import UsageError

# In the order in which they run: pass -> its bytes where nothing else is said.
BYTES = {
    "update": 1,  # needs none
    "share": 1,  # needs none
    "memory": 1,  # of the values that the step makes: as little as it can
    "bucket": 25 << 20,  # of one collective
    "bucket_wide": 25 << 20,
    "overlap": 256 << 20,  # of collectives under way
}
DEFAULT = ("update", "bucket", "overlap")


def asked_for(given: Mapping[str, Any] | None, backend: str) -> dict[str, int]:
    """Read what `ls.compile(passes=...)` was given.

    Args:
        given: pass -> False, True, or its limit in bytes; what is not named stays as it is.
        backend: "graph" has none by itself: its program is the graph as it was captured.

    Raises:
        UsageError: no such pass, or neither a truth value nor a number of bytes.

    Example:
        >>> asked_for({"overlap": False}, "inductor")
        {'update': 1, 'bucket': 26214400}
        >>> asked_for({"bucket": 1 << 20}, "graph")
        {'bucket': 1048576}
    """
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"passes={given!r}", want='a dict, as {"overlap": False}')
    said = dict(given or {})
    odd = [name for name in said if name not in BYTES]
    if odd:
        raise UsageError(
            f"no pass is called {odd[0]!r}", want=f"one of {', '.join(BYTES)}", where="passes="
        )
    for name, value in said.items():
        if type(value) not in (bool, int) or value < 0:
            raise UsageError(
                f"passes={{{name!r}: {value!r}}}", want="True, False, or its limit in bytes"
            )
    named = dict.fromkeys(DEFAULT if backend == "inductor" else (), True) | said
    limits = {name: BYTES[name] if named.get(name) is True else named.get(name) for name in BYTES}
    return {name: int(limit) for name, limit in limits.items() if limit}
