"""What a rank does with changed bytes, on its way from a store to a loaded program."""

from __future__ import annotations

import functools
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from lockstep.build.inspect import inspect
from lockstep.errors import ArtifactError, StoreError
from lockstep.fleet.obtain import Obtained
from lockstep.fleet.stores import ArtifactStore
from lockstep.run import admit, hit
from tests.corruption.files import sung

Admit = Callable[[bytes, dict[str, Any]], Any]
# Compiling a text runs none of it; a guard's is looked at so, and a program's by `lockstep verify`.
_RUNS = ("exec", "marshal.loads", "pickle.find_class", "import", "ctypes.dlopen")


@dataclass(frozen=True)
class Mutation:
    """One changed file.

    Args:
        kind: what was done to it.
        data: the bytes.
        wanted: the fingerprint of the job that reads it.
        rehashed: whether its digests agree with its content.
        trust: whether the job trusts one signer's key alone.
        through: the code that is to refuse it: a rank that loads, or `lockstep verify`; or a name
            in the bundle that the bytes are.
    """

    kind: str
    data: bytes = field(repr=False)
    wanted: dict[str, Any] = field(repr=False)
    rehashed: bool
    trust: bool
    through: Literal["load", "verify"] = "load"
    bundled: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it: "refused" in words, "accepted", "raw" (another error), or "ran"."""

    mutation: Mutation
    became: str
    told: str
    seconds: float


class _Here:
    """Of a session, what loading needs."""

    rank, world = 1, 2

    class journal:
        @staticmethod
        def event(*_: object, **__: object) -> None:
            return


def as_a_rank(data: bytes, wanted: dict[str, Any]) -> Any:
    """Verify and load, as `ls.compile` does with what a store gives."""
    hit.verify(data, wanted, "step.lockstep", {})
    obtained = Obtained(data, "", "loaded", None, {}, "step.lockstep")
    return admit.load(obtained, "step", "v0", _Here())  # type: ignore[arg-type]


class Judge:
    """Judges mutations.

    Args:
        folder: for files; another user must not be able to write it.
        key: the file of the public key that a job trusts.
        admit: what is to refuse.
    """

    def __init__(self, folder: Path, key: Path, admit: Admit = as_a_rank) -> None:
        self._path, self._key, self._admit = folder / "mutated.lockstep", key, admit

    def judge(self, mutation: Mutation) -> Outcome:
        """Offer one mutation and see."""
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("LOCKSTEP_TRUST", raising=False)
            if mutation.trust:
                patch.setenv("LOCKSTEP_TRUST", str(self._key))
            before, begin = sung(), time.perf_counter()
            with _heard() as events:
                became, told = self._offer(mutation)
            seconds = time.perf_counter() - begin
        if became == "refused" and (sung() != before or events):
            became, told = "ran", f"{', '.join(events[:4])}; then: {told}"
        return Outcome(mutation, became, told, seconds)

    def _offer(self, mutation: Mutation) -> tuple[str, str]:
        try:
            self._given(mutation)
        except (ArtifactError, StoreError) as error:
            in_words = error.what and (error.got or error.want or error.fixes)
            return ("refused" if in_words else "raw"), str(error)
        except Exception as error:
            return "raw", f"{type(error).__name__}: {error}"
        return "accepted", ""

    def _given(self, mutation: Mutation) -> None:
        if mutation.through == "verify":
            self._path.write_bytes(mutation.data)
            inspect(self._path)
        elif mutation.bundled is not None:
            self._path.write_bytes(mutation.data)
            store = ArtifactStore(self._path)
            data = store.read(mutation.bundled)
            if data is None:
                store.prepare(mutation.bundled)  # where a rank that finds nothing would build
            self._admit(data or b"", mutation.wanted)
        else:
            self._admit(mutation.data, mutation.wanted)


_ears: list[list[str]] = []


def _hear(event: str, _args: tuple[Any, ...]) -> None:
    if _ears and event in _RUNS:
        _ears[-1].append(event)


@functools.cache
def _listening() -> None:
    sys.addaudithook(_hear)  # for good: Python takes none out


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What was executed, unmarshalled, unpickled, imported or opened inside."""
    _listening()
    _ears.append([])
    yield _ears[-1]
    _ears.pop()


@contextmanager
def growth() -> Iterator[list[int]]:
    """Bytes by which this process' largest size grew inside."""
    before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    yield found
    found.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)


def faults(outcomes: Iterable[Outcome], slowest_s: float) -> list[str]:
    """What does not hold, in words."""
    return [
        f"{one.mutation.kind}: {one.became} after {one.seconds:.1f} s: {one.told[:300]}"
        for one in outcomes
        if one.became != "refused" or one.seconds > slowest_s
    ]
