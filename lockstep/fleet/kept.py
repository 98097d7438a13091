"""What a directory store keeps: which artifacts, since when unused, and which a process runs now.

A process that has an artifact from a store holds a shared lock on its file until it ends, however
it ends. What is held is never dropped; of the rest the least recently used goes first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lockstep.build import format
from lockstep.errors import ArtifactError, UsageError
from lockstep.fleet.store import SUFFIX, Dropped

LIMIT = "LOCKSTEP_STORE_LIMIT"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
MOST_HELD, MOST_TRIES = 128, 20
_held: dict[tuple[int, int], int] = {}  # a file's device and number -> what holds its lock


@dataclass(frozen=True)
class Kept:
    """One artifact of a store.

    Args:
        size: in bytes.
        used: when a job last took it, in seconds since the epoch: the file's time of modification,
            which looking at it leaves alone.
        running: whether a process of a job holds it now.
    """

    path: Path
    size: int
    used: float
    running: bool

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self.path.name

    def manifest(self) -> dict[str, Any]:
        """Return its manifest; its blobs are not read.

        Raises:
            ArtifactError: LS210 or LS211, the header is damaged, or not signed as asked.
        """
        with self.path.open("rb") as stream:
            reader = format.open_file(self.path, stream)
            reader.want(format.STEP)
            return reader.manifest

    def wrong(self) -> str | None:
        """Verify every byte of it; return what is wrong in words, None where nothing is."""
        from lockstep.build.inspect import inspect

        try:
            inspect(self.path)
        except ArtifactError as error:
            return str(error)
        return None


def hold(file: BinaryIO) -> None:
    """Keep an artifact from being dropped while this process lives; note that it is used now.

    Of more than 128 that a process took, the last ones are held; where a file system knows no
    locks, none is, and what was used last is dropped last.
    """
    info = os.fstat(file.fileno())
    with contextlib.suppress(OSError):  # a store that this process can only read
        os.utime(file.fileno())
    if (info.st_dev, info.st_ino) in _held:
        return
    mine = os.dup(file.fileno())
    for _ in range(MOST_TRIES):
        try:
            fcntl.flock(mine, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:  # somebody looks whether it is free
            time.sleep(0.002)
        except OSError:
            break
    _held[info.st_dev, info.st_ino] = mine
    if len(_held) > MOST_HELD:
        os.close(_held.pop(next(iter(_held))))


def release_all() -> None:
    """Let go of what this process holds; for tests, a process' end does it."""
    while _held:
        os.close(_held.popitem()[1])


def kept_in(folder: Path) -> list[Kept]:
    """Return the artifacts of a directory store, the least recently used first."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            info = os.fstat(file.fileno())
            with _locked(file) as free:
                found.append(Kept(path, info.st_size, info.st_mtime, not free))
    return sorted(found, key=lambda one: (one.used, one.path.name))


def drop(folder: Path, limit: int, *, but: Path | None = None) -> Dropped:
    """Drop the least recently used artifacts until a store is within a limit.

    Args:
        limit: bytes.
        but: what stays though nobody holds it: what was written just now.

    Raises:
        OSError: a file can't be deleted.
    """
    kept = kept_in(folder)
    left, gone, stay = sum(one.size for one in kept), [], []
    for one in kept:
        if left <= limit:
            break
        if one.path != but and _dropped(one):
            gone.append(one)
            left -= one.size
        else:
            stay.append(one)
    return Dropped(tuple(gone), tuple(stay), left)


def size_of(text: str) -> int:
    """Return the bytes that a size in words is.

    Raises:
        UsageError: LS001, it is none.

    Example:
        >>> size_of("20 GB"), size_of("1.5mb"), size_of("0")
        (20000000000, 1500000, 0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not found or found[2].lower() not in _UNITS:
        raise UsageError(f"{text!r} is no size", want="a number and B, KB, MB, GB or TB: 20GB")
    return round(float(found[1]) * _UNITS[found[2].lower()])


def limit_of_store() -> int | None:
    """Return what LOCKSTEP_STORE_LIMIT says, in bytes; None where it is unset.

    Raises:
        UsageError: LS001, it is no size.
    """
    text = os.environ.get(LIMIT)
    return size_of(text) if text else None


def _dropped(one: Kept) -> bool:
    with contextlib.suppress(FileNotFoundError), one.path.open("rb") as file:
        with _locked(file) as free:
            if free:
                one.path.unlink()
            return free
    return True  # another process dropped it


@contextlib.contextmanager
def _locked(file: BinaryIO) -> Iterator[bool]:
    """Whether nobody holds a file; nobody can take it inside."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
