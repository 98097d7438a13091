"""What a program's text finds by name: shipped libraries, and stand-ins for a compiler."""

from __future__ import annotations

from typing import Any

from lockstep.build.artifact import Artifact


def scope_for(artifact: Artifact) -> dict[str, Any]:
    """Return the names that an artifact's module text starts with."""
    return {"__name__": "lockstep_program"}
