"""This rank's place on an axis: in a captured step, a number that each rank reads as it runs."""

from __future__ import annotations

from lockstep.spmd.mesh import axis as axis_named


def coordinate(axis: str) -> int:
    """Return this rank's place on a mesh axis.

    Raises:
        UsageError: there is no such axis.
    """
    return axis_named(axis).group.rank()
