"""What one row of the table is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    """One right program of somebody else's layers.

    Args:
        name: of its row.
        mesh: axis -> ranks.
        step, make: as for `ls.check`.
        data: axes along which batches differ.
    """

    name: str
    mesh: dict[str, int]
    step: Callable[..., Any]
    make: Callable[[Any], Any]
    data: tuple[str, ...] = ()
