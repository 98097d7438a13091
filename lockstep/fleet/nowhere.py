"""A store for bytes that are of use to one start alone: they go from rank to rank, and are gone."""

from __future__ import annotations

from lockstep.fleet.store import ArtifactStore


class Nowhere(ArtifactStore):
    """Holds nothing and keeps nothing.

    Args:
        behind: the store of what is built of these bytes later, asked early whether it can take it;
            None where nothing is.
        name: of what is.
    """

    keeps = False

    def __new__(cls, *_: object) -> Nowhere:
        """Make one: no place names this kind."""
        return object.__new__(cls)

    def __init__(self, behind: ArtifactStore | None = None, name: str = "") -> None:
        self._behind, self._name = behind, name

    def where_of(self, name: str) -> str:
        """Return, for people, that it is nowhere."""
        return "nowhere"

    def read(self, name: str, *, digest: str | None = None, fetch: bool = True) -> bytes | None:
        """Return None."""
        return None

    def write(self, name: str, data: bytes, *, required: bool = False) -> bool:
        """Keep nothing, and say so."""
        return False

    def prepare(self, name: str) -> None:
        """Find out whether the store behind it can take what is built."""
        if self._behind is not None:
            self._behind.prepare(self._name)
