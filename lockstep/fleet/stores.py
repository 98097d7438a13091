"""The stores on this machine: a directory that only its owner can write, and one pinned file."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any, NoReturn

from lockstep.build.bundle import Bundle, is_bundle
from lockstep.build.ownership import refuse_if_open
from lockstep.errors import StoreError
from lockstep.fleet.kept import LIMIT as LIMIT_NAME
from lockstep.fleet.kept import Kept, drop, hold, kept_in, limit_of_store
from lockstep.fleet.say import say
from lockstep.fleet.store import ArtifactStore as ArtifactStore
from lockstep.fleet.store import Dropped, Pause, Place, local_path
from lockstep.fleet.timing import Timing
from lockstep.fleet.turns import Turn
from lockstep.fleet.wire import digest_of

DAY = 86400.0

# What no later start can do better: a store that was set wrongly, not one that is full.
_NEVER = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


class DirectoryStore(ArtifactStore):
    """A directory of artifacts, made with mode 0700 at the first write.

    Stores hold code that will be executed, so a directory or a file that another user can write is
    refused, and one below a folder that another user can write. Several jobs and nodes may share
    it: each file comes to be whole, by a rename, and what any process of a job has taken stays
    until that process ends.
    """

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place, **options)
        self.path = local_path(place) or Path(place)
        self._swept = False
        self._turns: dict[str, Turn] = {}

    def read(self, name: str, *, digest: str | None = None, fetch: bool = True) -> bytes | None:
        """Return an artifact's bytes, as every store does."""
        path = self.path_of(name)
        try:
            refuse_if_open(path)
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > self._limit:
                    raise too_large(str(path), size, self._limit)
                hold(file)
                data = file.read(self._limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(path, error) from error
        return data if digest in (None, digest_of(data)) else None

    def write(self, name: str, data: bytes, *, required: bool = False) -> bool:
        """Keep an artifact: a temporary file, renamed when its bytes are on the disk."""
        path = self.path_of(name)
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
        finally:
            self.leave(name)
        self._hold(path)
        return True

    def _hold(self, path: Path) -> None:
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
        """Find out, before a long build, that this process may not write here."""
        self.path_of(name)
        limit_of_store()
        try:
            self._make_directory()
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path))
        except OSError as error:
            if error.errno in _NEVER:
                raise self._never(name, error) from error

    def turn(self, name: str, job: str, timing: Timing, pause: Pause) -> bool:
        """Wait while another job builds a name in this directory."""
        turn = self._turns[name] = Turn(self.path, name, job, timing)
        return turn.wait(pause)

    def leave(self, name: str) -> None:
        """End this job's turn."""
        turn = self._turns.pop(name, None)
        if turn is not None:
            turn.end()

    def kept(self) -> list[Kept]:
        """Return its artifacts, the longest unused first."""
        refuse_if_open(self.path)
        return kept_in(self.path)

    def drop(self, limit: int) -> Dropped:
        """Drop the longest unused artifacts until the store is within a limit in bytes."""
        refuse_if_open(self.path)
        return drop(self.path, limit)

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
        """Delete what writers and builders left that were ended a day ago or more."""
        for path in [*self.path.glob(".*.tmp"), *self.path.glob(".*.turn")]:
            try:
                if time.time() - path.stat().st_mtime > DAY:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process swept it


class PinnedFile(ArtifactStore):
    """One file that is read for any name and never written: a bundle, or one artifact."""

    pinned = True

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place, **options)
        self.path = local_path(place) or Path(place)

    def path_of(self, name: str) -> Path:
        """Return the file."""
        return self.path

    def read(self, name: str, *, digest: str | None = None, fetch: bool = True) -> bytes | None:
        """Return the artifact's bytes; of a bundle, the one of that name or None.

        Raises:
            StoreError: the file is missing.
            ArtifactError: a bundle is damaged, or not signed as LOCKSTEP_TRUST asks for.
        """
        try:
            refuse_if_open(self.path)
            with self.path.open("rb") as file:
                if is_bundle(file):
                    data = Bundle(self.path, file).read(name)
                else:
                    size = os.fstat(file.fileno()).st_size
                    if size > self._limit:
                        raise too_large(str(self.path), size, self._limit)
                    data = file.read(self._limit + 1)
        except FileNotFoundError as error:
            raise StoreError(
                "the pinned artifact is missing",
                where=str(self.path),
                fix="write it with `lockstep build -o`, or set LOCKSTEP_STORE to a directory",
            ) from error
        except OSError as error:
            raise unreadable(self.path, error) from error
        return data if data is None or digest in (None, digest_of(data)) else None

    def write(self, name: str, data: bytes, *, required: bool = False) -> bool:
        """Refuse: it is never written."""
        self._refuse()

    def prepare(self, name: str) -> None:
        """Refuse: it is never written."""
        self._refuse()

    def kept(self) -> NoReturn:
        """Refuse: it is one file, and no store of several."""
        raise StoreError(
            "a pinned file is no store of several artifacts",
            where=str(self.path),
            fix=["lockstep show FILE", "lockstep verify FILE"],
        )

    def drop(self, limit: int) -> NoReturn:
        """Refuse: nothing is dropped from it."""
        self.kept()

    def _refuse(self) -> NoReturn:
        raise StoreError(
            "a pinned artifact is never written",
            where=str(self.path),
            got=self._held(),
            fix="set LOCKSTEP_STORE to a directory, or write the file with `lockstep build -o`",
        )

    def _held(self) -> str | None:
        """What a bundle holds, in words."""
        if not self.path.is_file():
            return None
        with self.path.open("rb") as file:
            if not is_bundle(file):
                return None
            steps = sorted(set(Bundle(self.path, file).steps.values()))
        return f"a bundle with no artifact for this call; it holds some of {', '.join(steps)}"


def too_large(where: str, size: int, limit: int) -> StoreError:
    """Return the error of a file that is larger than any artifact may be."""
    return StoreError(
        "an artifact is too large to be one",
        where=where,
        got=f"{size} bytes",
        want=f"at most {limit}",
    )


def unreadable(path: Path, error: OSError) -> StoreError:
    """Return the error of a file that cannot be read."""
    return StoreError("an artifact cannot be read", where=str(path), got=str(error))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that nobody ever sees half of: a temporary one, synced, then renamed."""
    mark = f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"  # containers are alike
    temporary = path.parent / f".{path.name}.{mark}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            temporary.rename(path)
        except FileNotFoundError:  # NFS says so of a rename that it did, when its answer was lost
            if path.read_bytes() != data:
                raise
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
