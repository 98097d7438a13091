"""What a rank asks the fleet for at a call that it has no program for, and how it asks again.

Where ranks hold ints of their own that follow one formula, all of them ask for the program that
has the formula in place of the numbers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from lockstep.build.early import Formulas, settled
from lockstep.build.fingerprint import file_of
from lockstep.capture.early import located
from lockstep.capture.source import line_that_reads
from lockstep.fleet.obtain import Asked
from lockstep.fleet.store import ArtifactStore
from lockstep.run.admit import Build
from lockstep.run.hit import Hit
from lockstep.run.nearest import why_missed
from lockstep.run.trial import Trial
from lockstep.spmd.affine import read_affine


@dataclasses.dataclass(frozen=True)
class Asking:
    """One rank's question.

    Args:
        build: makes the program of the rank's own fingerprint.
        store: where it may lie.
        place: this rank's coordinates.
        trial: how the ranks compare a captured graph with the step, before a program is built;
            None: they do not.
    """

    build: Build
    store: ArtifactStore
    place: dict[str, int]
    trial: Trial | None = None

    def first(self) -> Asked:
        """What is asked for as the fingerprint has it."""
        return self._asked(self.build)

    def again(self, found: list[Any]) -> Asked:
        """What is asked for with formulas in the place of numbers.

        Args:
            found: as the ranks agreed on it: path, formula.

        Raises:
            CaptureError: there is a number that a capture can put nothing in place of.
        """
        read = [(path, read_affine(record)) for path, record in found]
        formulas = [(path, formula) for path, formula in read if formula is not None]
        return self._asked(with_formulas(self.build, formulas))

    def line_of(self, path: Sequence[Any]) -> str | None:
        """The user's line that reads what a path of the fingerprint tells, where one is found."""
        field, *keys = path
        names = [key for key in keys if isinstance(key, str)]
        name = names[-1] if names else field.rpartition(" ")[2].rpartition(":")[2]
        step, found = self.build.step, self.build.bound.reach
        return line_that_reads([step.plain, *found.functions.values()], name)

    def _asked(self, build: Build) -> Asked:
        file = file_of(build.wanted)
        where, options = self.store.where_of(file), build.options
        check, eager = options.check, options.eager_check
        hit = Hit(build.wanted, check, self.store, where, build.here, self.place, eager)
        contract = {**build.wanted, "check": check, "eager_check": eager}
        tell = functools.cache(lambda: self._tell_missed(build))
        rehearse = self.trial.rehearsal_of(build, self.store, tell) if self.trial else None

        def run(stage: Callable[[str], None]) -> bytes:
            tell()
            return build.run(stage)

        # What is compared with another rank's is compared before it is rehearsed.
        second = build.second if rehearse is None else None
        return Asked(contract, file, run, hit.serves, second, rehearse)

    def _tell_missed(self, build: Build) -> None:
        """Say why the store has not what is wanted."""
        told, event = why_missed(self.store, build.wanted)
        if told:
            build.here.say(f"{build.step.name}: {told}")
        build.here.journal.event("missed", step=build.step.name, why=told, **event)


def with_formulas(build: Build, found: Formulas) -> Build:
    """The build of the program that has formulas in place of this rank's own numbers.

    Args:
        found: as `lockstep.build.early.formulas` gives it for the fingerprints of all ranks.

    Raises:
        CaptureError: there is a number that a capture can put nothing in place of.
    """
    call, bound = build.call, build.bound
    early = [located(path, formula, call, bound.state, bound.reach) for path, formula in found]
    return dataclasses.replace(build, wanted=settled(build.wanted, found), early=tuple(early))
