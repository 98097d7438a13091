"""Exit codes of `lockstep train`."""

from __future__ import annotations

DONE, FAILED, MISUSED, DIVERGED, LEFT = 0, 1, 2, 3, 75
