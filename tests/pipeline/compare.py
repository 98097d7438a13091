"""How far the losses and gradients of stages are from those of one process."""

from __future__ import annotations

from typing import Any

LIMIT = 1e-5


def apart(result: dict[str, Any]) -> float:
    """The largest relative difference of a rank's losses, norms and gradients from one process'."""
    pairs = zip(result["told"], result["alone"], strict=True)
    gaps = (abs(a - b) / abs(b) for told, want in pairs for a, b in zip(told, want, strict=True))
    return max(*gaps, *result["grads"])


def ends_agree(results: list[dict[str, Any]]) -> bool:
    """Whether the copies of what the first and the last stage share are equal to the bit.

    Args:
        results: of all ranks; `pp` is the outermost axis of two, so that halves are stages.
    """
    first, last = (results[: len(results) // 2], results[len(results) // 2 :])
    return [one["shared"] for one in first] == [one["shared"] for one in last]
