"""Whether bytes that a store has are what a job wants, and were checked as much as it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.build.artifact import Artifact
from lockstep.build.differing import rows_of as rows_of_fields
from lockstep.build.early import agreeing
from lockstep.build.fingerprint import Fields
from lockstep.errors import ArtifactError
from lockstep.fleet.store import ArtifactStore
from lockstep.run.options import CHECKS, EAGER
from lockstep.run.session import Here
from lockstep.spmd.affine import Place


@dataclass(frozen=True)
class Hit:
    """Whether bytes that a store has are what this job wants.

    Args:
        wanted: the fingerprint.
        check: how much of a check is asked for.
        where: what the bytes were read from.
        place: this rank's coordinates, where its numbers may stand as formulas.
        eager: whether a comparison with the step is asked for: "on" or "off".
    """

    wanted: Fields
    check: str
    store: ArtifactStore
    where: str
    here: Here
    place: dict[str, int] = field(default_factory=dict)
    eager: str = "off"

    def serves(self, data: bytes) -> bool:
        """Verify bytes; False where they were checked less than asked for, and are built again.

        Raises:
            ArtifactError: damaged, or another program than the wanted one; or checked too little,
                and pinned, so that nothing may be built in its place.
        """
        manifest = verify(data, self.wanted, self.where, self.place)
        ways = (("check", self.check, CHECKS), ("eager", self.eager, EAGER))
        for name, asked, known in ways:
            had = manifest.get(name, {}).get("mode", "off")
            if known.index(had) < known.index(asked):
                self._tell_weaker(name if name == "check" else "eager_check", had, asked)
                return False
        return True

    def _tell_weaker(self, option: str, had: str, asked: str) -> None:
        if self.store.pinned:
            raise ArtifactError(
                "the artifact was checked less than this job asks for",
                where=self.where,
                got=f"{option}={had!r}",
                want=f"{option}={asked!r}",
                fix=["build it again with this check", f"ls.compile({option}={had!r})"],
            )
        told = f"it was checked with {option}={had!r}, and {option}={asked!r} is asked for"
        if self.here.rank == 0:
            self.here.say(f"{self.where}: {told}; it is built again")
        self.here.journal.event("weaker", path=self.where, had=had, asked=asked)


def verify(data: bytes, wanted: Fields, where: str, place: Place) -> Fields:
    """Refuse bytes that are damaged, or that hold another program than the wanted one.

    Args:
        place: of this rank; a formula stands for the number that it gives there.

    Returns:
        The manifest.

    Raises:
        ArtifactError: names the damage, or every field that differs, both sides.
    """
    global _verified
    artifact = Artifact.from_bytes(data, where)
    _verified = (data, artifact)
    found = artifact.manifest.get("fingerprint", {})
    rows = rows_of_fields(found, agreeing(wanted, found, place))
    if rows:
        raise ArtifactError(
            f"the artifact is not the one this job wants: {len(rows)} field(s) differ",
            where=where,
            got="\n".join(f"{row.name}: {row.old}" for row in rows[:8]),
            want="\n".join(f"{row.name}: {row.new}" for row in rows[:8]),
            fix="delete it, or unset LOCKSTEP_STORE, and the next start builds the right one",
        )
    return artifact.manifest


_verified: tuple[bytes, Artifact] | None = None  # what this process looked through last


def artifact_of(data: bytes, where: str) -> Artifact:
    """The artifact of a file's bytes; the very bytes that were just verified are not read again."""
    global _verified
    last, _verified = _verified, None
    if last is not None and last[0] is data:
        return last[1]
    return Artifact.from_bytes(data, where)
