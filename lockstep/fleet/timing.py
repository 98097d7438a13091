"""How long the control plane waits for what, in one place and one environment variable."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass

from lockstep.errors import UsageError

VARIABLE = "LOCKSTEP_TIMING"


@dataclass(frozen=True)
class Timing:
    """Every time limit of the fleet, in seconds.

    Silence is counted in the observer's own polls, one a `beat`, never by two clocks: `dead` means
    `dead / beat` polls in which a counter did not move.

    Example:
        >>> Timing.for_world(2, {"LOCKSTEP_TIMING": "beat=0.2,dead=4"}).dead
        4.0
        >>> Timing.for_world(16384, {}).beat
        6.144
    """

    beat: float = 0.5
    """Between two heartbeats of a rank, and between two polls of a waiter."""
    lease: float = 30.0
    """A builder that is silent for so long loses the build to another rank."""
    dead: float = 60.0
    """A rank that is silent for so long is reported as the fault."""
    grace: float = 5.0
    """After a fault, a rank may stay so long in what it does; then its process is ended."""
    hard: float = 8.0
    """After it left that, a rank that goes on all the same is ended."""
    store: float = 60.0
    """A rendezvous store that answers nothing for so long counts as lost."""
    start: float = 600.0
    """Ranks wait so long for each other's contract."""
    build: float = 1800.0
    """Ranks wait so long for one that builds."""
    cause: float = 4.0
    """A broken connection is a consequence: so long its cause may take to be told."""
    ack: float = 3.0
    """A failing rank waits so long for the others to have read its fault."""
    say: float = 10.0
    """Between two lines that say what is being waited for."""
    peer: float = 10.0
    """A rank that ships bytes and sends none for so long is left for another one that has them."""
    remote: float = 60.0
    """A store by URL that answers nothing for so long is left aside."""
    finish: float = 120.0
    """A rank that is building when another falls silent may finish, for the restart's sake."""

    @classmethod
    def for_world(cls, world: int, environ: Mapping[str, str] | None = None) -> Timing:
        """Return the defaults for a number of ranks, with `LOCKSTEP_TIMING` applied.

        The beat grows with the world, so that one store's host can answer all heartbeats.

        Args:
            world: number of ranks.
            environ: where to look for the variable; None is `os.environ`.

        Raises:
            UsageError: the variable holds an unknown name or no positive number.
        """
        beat = max(cls.beat, world * 3 / 8000)
        grown = cls(beat=beat, lease=max(cls.lease, 8 * beat), dead=max(cls.dead, 8 * beat))
        text = (os.environ if environ is None else environ).get(VARIABLE, "")
        return dataclasses.replace(grown, **_parsed(text))

    def polls(self, seconds: float) -> int:
        """Return how many polls make up so many seconds, at least one."""
        return max(1, round(seconds / self.beat))


def _parsed(text: str) -> dict[str, float]:
    names = [field.name for field in dataclasses.fields(Timing)]
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        value = _positive(number)
        if name not in names or value is None:
            raise UsageError(
                f"{VARIABLE} holds {part!r}",
                got=text,
                want=f"name=seconds, separated by commas; the names are {', '.join(names)}",
                fix=f'{VARIABLE}="beat=0.5,dead=60"',
            )
        values[name] = value
    return values


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
