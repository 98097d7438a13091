"""What every store of artifacts promises, and which kind of store a path or a URL names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lockstep.errors import StoreError, UsageError
from lockstep.fleet.timing import Timing
from lockstep.journal import Journal

SUFFIX = ".lockstep"
LIMIT = 8 << 30  # bytes
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}")
_URL = re.compile(r"([a-z][a-z0-9+.-]+):(/+)(.*)", re.DOTALL)

Place = str | os.PathLike[str]
Pause = Callable[[float, str], None]


class Listed(Protocol):
    """One artifact of a store."""

    @property
    def name(self) -> str:
        """Its name in the store."""

    @property
    def size(self) -> int:
        """In bytes."""

    @property
    def used(self) -> float:
        """When a job last took it, in seconds since the epoch."""

    @property
    def running(self) -> bool:
        """Whether it must stay, since it is in use."""

    def manifest(self) -> dict[str, Any]:
        """Return its manifest; its blobs are not read.

        Raises:
            ArtifactError: LS210 or LS211, the header is damaged, or not signed as asked.
        """

    def wrong(self) -> str | None:
        """Verify every byte; return what is wrong in words, None where nothing is."""


@dataclass(frozen=True)
class Dropped:
    """What was dropped, what had to stay because it is in use, and what is left in bytes."""

    gone: tuple[Listed, ...]
    stay: tuple[Listed, ...]
    left: int


class ArtifactStore:
    """Artifacts by name, at a path or a URL; making one chooses the kind of store.

    A directory that only its owner can write; one pinned file, a bundle or one artifact, which is
    read for any name and never written; or a URL of any file system that fsspec knows, which a
    directory on each node keeps a copy of. Reading verifies no artifact: the caller does.

    Where LOCKSTEP_STORE_LIMIT is set, a write drops what has been unused the longest, and never
    what is in use.

    Args:
        place: a path, or a URL: s3://bucket/prefix.
        limit: the largest artifact that is read, in bytes.
        rank: who speaks in warnings.
        journal: where transfers are noted.

    Raises:
        UsageError: LS001, the place is neither a path nor a URL.

    Example:
        >>> import tempfile
        >>> store = ArtifactStore(Path(tempfile.mkdtemp()) / "store")
        >>> store.read("step.lockstep"), store.write("step.lockstep", b"bytes")
        (None, True)
        >>> store.read("step.lockstep")
        b'bytes'
    """

    path: Path
    """The directory on this machine, or the pinned file."""
    pinned: bool = False
    """Whether it is one file, which is never written."""
    keeps: bool = True
    """Whether what is built for it is meant to last; else it is of use to one start alone."""

    def __new__(cls, place: Place, **options: Any) -> ArtifactStore:
        """Make the kind of store that a place names."""
        return super().__new__(_kind(place) if cls is ArtifactStore else cls)

    def __init__(
        self,
        place: Place,
        *,
        limit: int = LIMIT,
        rank: int = 0,
        journal: Journal | None = None,
    ) -> None:
        self._limit, self._rank = limit, rank
        self._journal = journal or Journal(None, rank)

    def __str__(self) -> str:
        """The place, for people."""
        return str(self.path)

    def path_of(self, name: str) -> Path:
        """Return the file on this machine that holds or would hold an artifact.

        Raises:
            StoreError: the name could leave the directory.
        """
        return self.path / checked(name)

    def where_of(self, name: str) -> str:
        """Return where an artifact is, for people."""
        return str(self.path_of(name))

    def read(self, name: str, *, digest: str | None = None, fetch: bool = True) -> bytes | None:
        """Return an artifact's bytes, unverified; None where there is none.

        Args:
            name: the artifact's name.
            digest: of the bytes that alone will do; None: any of that name.
            fetch: whether to go beyond this machine for it.

        Raises:
            StoreError: it is too large, cannot be read, or could be another user's work; or the
                store is set wrongly.
        """
        raise NotImplementedError

    def write(self, name: str, data: bytes, *, required: bool = False) -> bool:
        """Keep an artifact, whole or not at all.

        Args:
            name: the artifact's name.
            data: its bytes.
            required: whether a store that takes nothing is an error.

        Returns:
            whether the next start finds it; if not, a warning was printed and the job can go on.

        Raises:
            StoreError: the store can never be written; or it takes nothing now, and `required`.
        """
        raise NotImplementedError

    def keep(self, name: str, data: bytes) -> bool:
        """Keep on this node what came from another one; returns and raises as `write`."""
        return self.write(name, data)

    def forget(self, name: str, why: str) -> bool:
        """Give up a copy on this node that is not sound; return whether there was one to give up.

        Only what was copied from elsewhere is given up: then `read` fetches it again.
        """
        return False

    def prepare(self, name: str) -> None:
        """Find out, before a long build, that a store can never take what is built.

        Raises:
            StoreError: the store is pinned or unsafe, or this process may not write it.
            UsageError: LOCKSTEP_STORE_LIMIT is no size.
        """
        raise NotImplementedError

    def turn(self, name: str, job: str, timing: Timing, pause: Pause) -> bool:
        """Wait while another job that uses this store builds a name; then it is this job's turn.

        The turn ends with `write`, or with `leave`. Only a directory has turns; elsewhere two jobs
        may build the same, which is twice the work and never wrong.

        Args:
            name: the artifact's name.
            job: a word of this job's alone; its own ranks never wait for each other here.
            timing: how long a job that shows no sign of life is waited for.
            pause: called once a beat with the seconds waited so far and what for; it sleeps, and
                what it raises ends the wait.

        Returns:
            whether it waited: the artifact may be there now.
        """
        return False

    def leave(self, name: str) -> None:
        """End this job's turn without having written."""

    def kept(self) -> Sequence[Listed]:
        """Return its artifacts, the longest unused first."""
        raise NotImplementedError

    def drop(self, limit: int) -> Dropped:
        """Drop the longest unused artifacts until the store is within a limit in bytes.

        Raises:
            OSError, StoreError: one can't be deleted.
        """
        raise NotImplementedError


def checked(name: str) -> str:
    """Return a name that stays within a store's folder.

    Raises:
        StoreError: it could leave it.
    """
    if not _NAME.fullmatch(name) or ".." in name:
        raise StoreError(f"{name!r} cannot name an artifact", want="letters, digits, _ . + -")
    return name


def named_store(place: Place | None) -> Place:
    """Return a place, by default `$LOCKSTEP_STORE`, else `~/.cache/lockstep`."""
    return place or os.environ.get("LOCKSTEP_STORE") or default_folder()


def default_folder() -> Path:
    """Return the folder that is a store where nothing else is named."""
    return Path.home() / ".cache" / "lockstep"


def local_path(place: Place) -> Path | None:
    """Return the path that a place names on this machine, also as file://; None for another URL.

    Raises:
        UsageError: LS001, it begins as a URL does and is none.

    Example:
        >>> local_path("file:///data/store"), local_path("s3://bucket/store")
        (PosixPath('/data/store'), None)
    """
    text = os.fspath(place)
    found = _URL.match(text)
    if found is None:
        return Path(text).expanduser()
    protocol, slashes, rest = found.groups()
    if len(slashes) < 2:
        raise UsageError(
            f"{text} is neither a path nor a URL",
            want="two slashes after the protocol: s3://bucket/prefix",
            fix=f"write {protocol}://{rest}, as text: a Path makes one slash of two",
        )
    return Path(slashes[2:] + rest) if protocol in ("file", "local") else None


def _kind(place: Place) -> type[ArtifactStore]:
    path = local_path(place)
    if path is None:
        from lockstep.fleet.remote import RemoteStore

        return RemoteStore
    from lockstep.fleet.stores import DirectoryStore, PinnedFile

    is_file = path.is_file() or (path.suffix == SUFFIX and not path.is_dir())
    return PinnedFile if is_file else DirectoryStore
