"""A size that may differ from call to call, and guards in words: what a manifest tells of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """One dimension of an argument, and the sizes that it may have, both ends included."""

    name: str
    dim: int
    low: int
    high: int

    @property
    def ends(self) -> str:
        """The range, as a shape shows it."""
        return f"{self.low}..{self.high}"

    def __str__(self) -> str:
        return f"{self.name}.shape[{self.dim}]"


def readable(text: str, sizes: Sequence[Size]) -> str:
    """A guard with the sizes' names in place of n0, n1, ..."""

    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return str(sizes[number]) if number < len(sizes) else found[0]

    return re.sub(r"\bn(\d{1,6})\b", named, text)
