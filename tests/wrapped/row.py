"""One case of a wrapped model, and what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A case's name, what was seen, and whether that is what its line says."""

    name: str
    told: str
    holds: bool
