"""The environment's switch, `LOCKSTEP=off|torch|torch-one-rank`: the way back, the comparison."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from lockstep.errors import UsageError

ON, OFF, TORCH, TORCH_ONE_RANK = "on", "off", "torch", "torch-one-rank"
MODES = (ON, OFF, TORCH, TORCH_ONE_RANK)
WORDS = {
    ON: "as one program, built by one rank",
    OFF: "eagerly",
    TORCH: "under plain torch.compile, on every rank",
    TORCH_ONE_RANK: "under torch.compile with compile_on_one_rank, on every rank",
}


def mode() -> str:
    """What `@ls.compile` does in this process.

    "on": Lockstep; "off": the step runs eagerly; "torch": plain `torch.compile` on every rank;
    "torch-one-rank": the same with torch's `compile_on_one_rank` flag.

    Raises:
        UsageError: the variable holds another word.
    """
    word = os.environ.get("LOCKSTEP", "") or ON
    if word not in MODES:
        raise UsageError(
            f"LOCKSTEP={word} is unknown", got=word, want=f"one of {', '.join(MODES)}, or unset"
        )
    return word


Instead = Callable[[Any], Callable[..., Any]]

_instead: Instead | None = None


@contextlib.contextmanager
def calls_go_to(instead: Instead) -> Iterator[None]:
    """Inside, each compiled step that is called is given to `instead`, and what it gives is called.

    So that one script can be checked, built ahead of time and run.
    """
    global _instead
    outer, _instead = _instead, instead
    try:
        yield
    finally:
        _instead = outer


def instead() -> Instead | None:
    """What stands in for compiled steps now; None: they run."""
    return _instead


def tell(name: str) -> None:
    """Say, on rank 0, in which way other than Lockstep's a step runs."""
    from lockstep.fleet.say import say

    if int(os.environ.get("RANK", "0")) == 0:
        say(0, f"LOCKSTEP={mode()}: {name} runs {WORDS[mode()]}")
