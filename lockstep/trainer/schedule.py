"""The learning rate of a step: a function of its number alone, so there is no state to save."""

from __future__ import annotations

import math

from lockstep.trainer.config import Schedule


def rate(schedule: Schedule, lr: float, step: int) -> float:
    """Return the learning rate of a step.

    It rises in a line over `warmup` steps to `lr`, then falls to `final * lr` at the last step.

    Args:
        lr: the highest rate.
        step: from 0.

    Example:
        >>> line = Schedule(steps=5, warmup=2, decay="linear", final=0.0)
        >>> [rate(line, 1.0, step) for step in range(5)]
        [0.5, 1.0, 0.6666666666666667, 0.33333333333333337, 0.0]
    """
    if step < schedule.warmup:
        return lr * (step + 1) / schedule.warmup
    begin = max(schedule.warmup - 1, 0)  # the step that has the highest rate
    done = (step - begin) / max(schedule.steps - 1 - begin, 1)
    if schedule.decay == "none":
        return lr
    left = 1 - done if schedule.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return lr * (schedule.final + (1 - schedule.final) * left)
