"""How far the losses of stages are from those of one process."""

from __future__ import annotations

from typing import Any

LIMIT = 1e-5


def apart(result: dict[str, Any]) -> float:
    """The largest relative difference of a rank's losses and norms from one process'."""
    pairs = zip(result["told"], result["alone"], strict=True)
    return max(abs(a - b) / abs(b) for told, want in pairs for a, b in zip(told, want, strict=True))
