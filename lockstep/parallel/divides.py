"""What a mesh has to divide, told at once and before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.errors import UsageError


@dataclass(frozen=True)
class Divided:
    """A number that ranks share out evenly.

    Args:
        what: what it counts, such as "heads".
        number: how many there are.
        by: into how many parts.
        axes: the mesh axes that do it, in words.
    """

    what: str
    number: int
    by: int
    axes: str


def refuse_unknown(sizes: Iterable[str], axes: Sequence[str], model: str) -> None:
    """Refuse axes of a mesh that a model's plan does not have.

    Raises:
        UsageError: there are some.

    Example:
        >>> refuse_unknown({"dp": 2, "pp": 2}, ("dp", "tp"), "a Llama")
        Traceback (most recent call last):
        lockstep.errors.UsageError: LS001: a Llama's plan has no axis pp
          want some of dp, tp
    """
    unknown = [axis for axis in sizes if axis not in axes]
    if unknown:
        raise UsageError(
            f"{model}'s plan has no axis {', '.join(unknown)}", want=f"some of {', '.join(axes)}"
        )


def refuse_uneven(asked: Iterable[Divided]) -> None:
    """Refuse the first number that does not divide.

    Raises:
        UsageError: it names the number, the axes, and the numbers nearby that would do.

    Example:
        >>> refuse_uneven([Divided("heads", 6, 4, "tp=4")])
        Traceback (most recent call last):
        lockstep.errors.UsageError: LS001: tp=4 does not divide heads
          got  6 heads
          want a multiple of 4
          fix  heads 8, or sizes of tp=4 that divide 6
    """
    for each in asked:
        if each.number % each.by:
            above = (each.number // each.by + 1) * each.by
            raise UsageError(
                f"{each.axes} does not divide {each.what}",
                got=f"{each.number} {each.what}",
                want=f"a multiple of {each.by}",
                fix=f"{each.what} {above}, or sizes of {each.axes} that divide {each.number}",
            )
