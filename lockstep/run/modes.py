"""The environment's switch: `LOCKSTEP=off|torch|torch-one-rank`, the way back and the comparison."""

from __future__ import annotations

import os

from lockstep.errors import UsageError

ON, OFF, TORCH, TORCH_ONE_RANK = "on", "off", "torch", "torch-one-rank"
MODES = (ON, OFF, TORCH, TORCH_ONE_RANK)


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
