"""Is a loss odd: not finite, or far above its running mean."""

from __future__ import annotations

import math

from lockstep.trainer.config import Guard

_PACE = 0.1  # how fast the mean follows


class Watched:
    """The running mean of a training's loss, and what is odd beside it.

    Example:
        >>> watched = Watched(Guard(spike=3.0))
        >>> [watched.odd(loss, 1.0) for loss in (2.0, 2.1, 9.0, 2.0, float("nan"))]
        ['', '', 'loss 9 is 4.5 times its mean', '', 'loss nan']
    """

    def __init__(self, config: Guard) -> None:
        self.config = config
        self.mean: float | None = None

    def odd(self, loss: float, norm: float) -> str:
        """Say what is odd, or "" and follow the loss."""
        for name, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                return f"{name} {value:g}"
        if self.config.spike and self.mean is not None and loss > self.config.spike * self.mean:
            return f"loss {loss:g} is {loss / self.mean:.1f} times its mean"
        self.mean = loss if self.mean is None else self.mean + _PACE * (loss - self.mean)
        return ""
