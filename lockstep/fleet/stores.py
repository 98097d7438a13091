"""Where artifacts are kept: a directory that only its owner can write, or one pinned file."""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from pathlib import Path

from lockstep.build.bundle import Bundle, is_bundle
from lockstep.build.ownership import refuse_if_open
from lockstep.errors import StoreError
from lockstep.fleet.kept import LIMIT as LIMIT_NAME
from lockstep.fleet.kept import SUFFIX, drop, hold, limit_of_store
from lockstep.fleet.say import say

LIMIT = 8 << 30  # bytes
DAY = 86400.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,200}")

# What no later start can do better: a store that was set wrongly, not one that is full.
_NEVER = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


class ArtifactStore:
    """Artifacts by name.

    Stores hold code that will be executed, so a directory or a file that another user can write is
    refused, and one below a folder that another user can write. Reading verifies no artifact: the
    caller does.

    Where LOCKSTEP_STORE_LIMIT is set, a write drops what has been unused the longest; what any
    process of a job has taken from the store stays until that process ends.

    Args:
        path: a directory, made with mode 0700 at the first write; or a `.lockstep` file, which is
            never written: a bundle, or one artifact, which is read for any name.
        limit: the largest artifact that is read, in bytes.
        rank: who speaks in warnings.

    Example:
        >>> import tempfile
        >>> store = ArtifactStore(Path(tempfile.mkdtemp()) / "store")
        >>> store.read("step.lockstep"), store.write("step.lockstep", b"bytes")
        (None, True)
        >>> store.read("step.lockstep")
        b'bytes'
    """

    def __init__(self, path: Path | str, *, limit: int = LIMIT, rank: int = 0) -> None:
        self.path = Path(path).expanduser()
        self.pinned = self.path.is_file() or (self.path.suffix == SUFFIX and not self.path.is_dir())
        self._limit, self._rank, self._swept = limit, rank, False

    def path_of(self, name: str) -> Path:
        """Return the file that holds or would hold an artifact.

        Raises:
            StoreError: the name could leave the directory.
        """
        if self.pinned:
            return self.path
        if not _NAME.fullmatch(name) or ".." in name:
            raise StoreError(f"{name!r} cannot name an artifact", want="letters, digits, _ . + -")
        return self.path / name

    def read(self, name: str) -> bytes | None:
        """Return an artifact's bytes, unverified; None where there is none.

        Raises:
            StoreError: the file is too large, cannot be read, or could be another user's work; or
                a pinned file is missing.
            ArtifactError: a bundle is damaged, or not signed as LOCKSTEP_TRUST asks for.
        """
        path = self.path_of(name)
        try:
            refuse_if_open(path)
            with path.open("rb") as file:
                info = os.fstat(file.fileno())
                if self.pinned and is_bundle(file):
                    return Bundle(path, file).read(name)
                if info.st_size > self._limit:
                    raise StoreError(
                        "an artifact is too large to be one",
                        where=str(path),
                        got=f"{info.st_size} bytes",
                        want=f"at most {self._limit}",
                    )
                if not self.pinned:
                    hold(file)
                return file.read(self._limit + 1)
        except FileNotFoundError as error:
            if self.pinned:
                raise StoreError(
                    "the pinned artifact is missing",
                    where=str(path),
                    fix="write it with `lockstep build -o`, or set LOCKSTEP_STORE to a directory",
                ) from error
            return None
        except OSError as error:
            what = "an artifact cannot be read"
            raise StoreError(what, where=str(path), got=str(error)) from error

    def write(self, name: str, data: bytes, *, required: bool = False) -> bool:
        """Keep an artifact: a temporary file, renamed when its bytes are on the disk.

        Args:
            name: the artifact's name.
            data: its bytes.
            required: whether a store that takes nothing is an error.

        Returns:
            whether it was kept; if not, a warning was printed and the job can go on from memory.

        Raises:
            StoreError: the store is pinned, unsafe, or can never be written; or it takes nothing
                now (a full disk) and `required` is set.
        """
        path = self._writable(name)
        try:
            self._make_directory()
            write_whole(path, data)
        except OSError as error:
            reason = f"{error.strerror or error} ({self.path})"
            if required or error.errno in _NEVER:
                raise self._never(name, error) from error
            text = f"warning: could not keep {name}: {reason}; this job goes on from memory"
            say(self._rank, f"{text}, the next start builds again")
            return False
        self._keep(path)
        return True

    def _keep(self, path: Path) -> None:
        """Hold what was written, and drop what has been unused the longest where it is too much."""
        try:
            with path.open("rb") as file:
                hold(file)
            limit = limit_of_store()
            dropped = drop(self.path, limit, but=path) if limit is not None else None
        except OSError as error:
            say(self._rank, f"warning: could not shrink {self.path}: {error}")
            return
        if dropped is not None and dropped.gone:
            size = sum(one.size for one in dropped.gone) / 1e6
            say(
                self._rank,
                f"{len(dropped.gone)} unused artifacts dropped, {size:.1f} MB: {self.path}",
            )
        if dropped is not None and limit is not None and dropped.left > limit:
            say(self._rank, f"{dropped.left / 1e6:.1f} MB in use, over {LIMIT_NAME}: {self.path}")

    def prepare(self, name: str) -> None:
        """Find out, before a long build, that a store can never take what is built.

        Raises:
            StoreError: the store is pinned or unsafe, or this process may not write it.
            UsageError: LOCKSTEP_STORE_LIMIT is no size.
        """
        self._writable(name)
        limit_of_store()
        try:
            self._make_directory()
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        except OSError as error:
            if error.errno in _NEVER:
                raise self._never(name, error) from error

    def _writable(self, name: str) -> Path:
        path = self.path_of(name)
        if self.pinned:
            raise StoreError(
                "a pinned artifact is never written",
                where=str(path),
                got=self._held(),
                fix="set LOCKSTEP_STORE to a directory, or write the file with `lockstep build -o`",
            )
        return path

    def _held(self) -> str | None:
        """What a bundle holds, in words."""
        if not self.path.is_file():
            return None
        with self.path.open("rb") as file:
            if not is_bundle(file):
                return None
            steps = sorted(set(Bundle(self.path, file).steps.values()))
        return f"a bundle with no artifact for this call; it holds some of {', '.join(steps)}"

    def _never(self, name: str, error: OSError) -> StoreError:
        return StoreError(
            f"the store cannot keep {name}",
            where=str(self.path),
            got=str(error),
            fix="free or mount that directory, or set LOCKSTEP_STORE to another one",
        )

    def _make_directory(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_if_open(self.path)
        if not self._swept:
            self._swept = True
            self._sweep()

    def _sweep(self) -> None:
        """Delete temporary files of writers that were ended a day ago or more."""
        for path in self.path.glob(".*.tmp"):
            try:
                if time.time() - path.stat().st_mtime > DAY:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process swept it


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that nobody ever sees half of: a temporary one, synced, then renamed."""
    temporary = path.parent / f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp"
    temporary.unlink(missing_ok=True)  # an earlier process with this id
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
