"""A store by URL: what a fleet shares, and a copy on each node of what the node has used.

An artifact is the object NAME/DIGEST below the URL, where DIGEST is the sha256 of its bytes. So
what is read proves itself whole, an object never changes, and two jobs that write one name at once
leave two objects, of which the last put counts. NAME/DIGEST.used is put anew when a job takes it.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.build import format
from lockstep.errors import ArtifactError, StoreError, UsageError
from lockstep.fleet.kept import LIMIT as LIMIT_NAME
from lockstep.fleet.kept import limit_of_store
from lockstep.fleet.objects import Found, Objects, Unreachable
from lockstep.fleet.say import say
from lockstep.fleet.store import (
    SUFFIX,
    ArtifactStore,
    Dropped,
    Place,
    checked,
    default_folder,
)
from lockstep.fleet.stores import DirectoryStore, too_large
from lockstep.fleet.timing import Timing
from lockstep.fleet.wire import digest_of

USED = ".used"
RECENT_S = 600.0  # what a job took or put so lately is in use
NOTE_S = 3600.0  # a node notes so often that it uses an artifact
HEAD = 1 << 20  # bytes, which hold nearly every manifest


class RemoteStore(ArtifactStore):
    """Artifacts below a URL, with a directory on this node that keeps what the node has used.

    One process of a node fetches; the others read the node's copy. Where the store can't be reached
    or can't be written, a warning says so and the job goes on; where it is set wrongly, such as a
    bucket that is not there, reading is an error.

    Args:
        place: the URL: s3://bucket/prefix, gs://..., memory://...
    """

    def __init__(self, place: Place, **options: Any) -> None:
        super().__init__(place, **options)
        self.url = str(place).rstrip("/")
        if self.url.endswith(SUFFIX):
            raise UsageError(
                f"{self.url} names one artifact",
                want="the URL of a folder that holds artifacts",
                fix="download that file, and set LOCKSTEP_STORE to its path",
            )
        self.copy = DirectoryStore(copy_of(self.url), limit=self._limit, rank=self._rank)
        self.path = self.copy.path
        self._objects = Objects(self.url, self._rank, Timing.for_world(1).remote)
        self._warned = False

    def __str__(self) -> str:
        """The URL."""
        return self.url

    def where_of(self, name: str) -> str:
        """Return an artifact's URL; below it are its versions, each named by its digest."""
        return f"{self.url}/{checked(name)}"

    def read(self, name: str, *, digest: str | None = None, fetch: bool = True) -> bytes | None:
        """Return an artifact's bytes: this node's copy, else the store's newest, then copied."""
        unused = fetch and self._unused_here(name)
        data = self.copy.read(name, digest=digest)
        if data is None and fetch:
            data = self._fetched(name, digest)
            if data is not None:
                self.keep(name, data)
        if data is not None and unused:
            self._note_use(name, data)
        return data

    def write(self, name: str, data: bytes, *, required: bool = False) -> bool:
        """Put an artifact into the store, and keep a copy of it on this node."""
        kept = self.keep(name, data)
        begin = time.monotonic()
        try:
            self._objects.put(f"{checked(name)}/{digest_of(data)}", data)
            self._note("put", name, len(data), begin)
            self._shrink(name)
        except StoreError as error:
            if required:
                raise
            self._journal.event("put_failed", artifact=name, url=self.url, error=str(error))
            goes_on = "this node alone keeps a copy" if kept else "this job goes on from memory"
            say(self._rank, f"warning: could not keep {name}: {goes_on}\n{error}")
            return kept
        return True

    def keep(self, name: str, data: bytes) -> bool:
        """Keep this node's copy alone."""
        try:
            return self.copy.write(name, data)
        except StoreError as error:
            say(self._rank, f"warning: no copy on this node: {error}")
            return False

    def forget(self, name: str, why: str) -> bool:
        """Delete this node's copy, which is not sound."""
        try:
            self.copy.path_of(name).unlink()
        except OSError:
            return False
        say(self._rank, f"warning: this node's copy of {name} is given up: {why}")
        return True

    def prepare(self, name: str) -> None:
        """Find out, before a long build, what can be known without asking."""
        checked(name)
        limit_of_store()

    def kept(self) -> list[Object]:
        """Return its artifacts, the longest unused first."""
        return sorted(self._listed(), key=lambda one: (one.used, one.name, one.digest))

    def drop(self, limit: int, but: str = "") -> Dropped:
        """Drop the longest unused until the store is within a limit; not what was used just now."""
        kept = self.kept()
        left, gone, stay = sum(one.size for one in kept), list[Object](), list[Object]()
        for one in kept:
            if left <= limit:
                break
            if one.running or one.name == but:
                stay.append(one)
                continue
            self._objects.remove(one.key)
            self._objects.remove(one.key + USED)
            gone.append(one)
            left -= one.size
        return Dropped(tuple(gone), tuple(stay), left)

    # ---- reading -------------------------------------------------------------------------------

    def _fetched(self, name: str, digest: str | None) -> bytes | None:
        """The store's newest bytes of a name, or those of one digest; None where it has none."""
        begin = time.monotonic()
        try:
            for one in reversed(self._listed(checked(name))):
                if digest not in (None, one.digest):
                    continue
                if one.size > self._limit:
                    raise too_large(f"{self.url}/{one.key}", one.size, self._limit)
                data = self._objects.get(one.key, one.size)
                if data is not None and digest_of(data) == one.digest:
                    self._note("fetched", name, len(data), begin)
                    return data
                if data is not None:
                    say(self._rank, f"warning: {self.url}/{one.key} is damaged, and passed over")
        except Unreachable as error:
            self._journal.event("fetch_failed", artifact=name, url=self.url, error=str(error))
            if not self._warned:
                say(self._rank, f"warning: {error}")
            self._warned = True
        return None

    def _listed(self, folder: str = "") -> list[Object]:
        """The artifacts of the store, or of one name: the last put comes last."""
        found = self._objects.list(folder)
        used = {one.name.removesuffix(USED): one.time for one in found if one.name.endswith(USED)}
        now = max([time.time(), *(one.time for one in found)])
        rows = sorted((one.time, one.name, one) for one in found if _is_artifact(one.name))
        return [
            Object(self._objects, one, max(put, used.get(key, 0.0)), now) for put, key, one in rows
        ]

    def _unused_here(self, name: str) -> bool:
        """Whether this node has not taken it for an hour."""
        try:
            return time.time() - self.copy.path_of(name).stat().st_mtime > NOTE_S
        except OSError:
            return True

    # ---- what is told and noted ----------------------------------------------------------------

    def _note(self, event: str, name: str, size: int, begin: float) -> None:
        seconds = time.monotonic() - begin
        speed = size / 1e6 / max(seconds, 1e-9)
        self._journal.event(
            event,
            artifact=name,
            url=self.url,
            bytes=size,
            seconds=round(seconds, 4),
            mb_per_s=round(speed, 1),
        )

    def _note_use(self, name: str, data: bytes) -> None:
        """Put the mark of use; in a thread, for no start waits for it."""

        def run() -> None:
            try:
                self._objects.put(f"{name}/{digest_of(data)}{USED}", b"")
            except StoreError as error:
                self._journal.event("use_not_noted", artifact=name, error=str(error))

        threading.Thread(target=run, name="lockstep-used", daemon=True).start()

    def _shrink(self, name: str) -> None:
        limit = limit_of_store()
        if limit is None:
            return
        dropped = self.drop(limit, but=name)
        if dropped.gone:
            size = sum(one.size for one in dropped.gone) / 1e6
            text = f"{len(dropped.gone)} unused artifacts dropped, {size:.1f} MB: {self.url}"
            say(self._rank, text)
        if dropped.left > limit:
            over = f"{dropped.left / 1e6:.1f} MB in use, over {LIMIT_NAME}: {self.url}"
            say(self._rank, over)


@dataclass(frozen=True)
class Object:
    """One artifact of a store by URL.

    Args:
        found: its object.
        used: when a job last took or put it.
        now: by the store's clock or ours, whichever is ahead.
    """

    objects: Objects = field(repr=False)
    found: Found
    used: float
    now: float

    @property
    def key(self) -> str:
        """Its path below the URL."""
        return self.found.name

    @property
    def name(self) -> str:
        """Its name in the store."""
        return self.key.partition("/")[0]

    @property
    def digest(self) -> str:
        """The sha256 that its bytes should have."""
        return self.key.partition("/")[2]

    @property
    def size(self) -> int:
        """In bytes."""
        return self.found.size

    @property
    def running(self) -> bool:
        """Whether a job took or put it so lately that it may still be fetching it."""
        return self.now - self.used < RECENT_S

    def manifest(self) -> dict[str, Any]:
        """Return its manifest, for which one request is made; a long one makes two."""
        where = f"{self.objects.url}/{self.key}"
        head = self.objects.head(self.key, min(HEAD, self.size)) or b""
        try:
            return _manifest(head, self.size, where)
        except ArtifactError:
            if len(head) >= self.size:
                raise
            return _manifest(self.objects.get(self.key, self.size) or b"", self.size, where)

    def wrong(self) -> str | None:
        """Verify every byte: its name's digest, and all that an artifact says of itself."""
        from lockstep.build.artifact import Artifact

        data, where = self.objects.get(self.key, self.size), f"{self.objects.url}/{self.key}"
        if data is None:
            return None  # dropped just now
        found = digest_of(data)
        if found != self.digest:
            told = ArtifactError("changed bytes", where=where, got=found, want=self.digest)
            return str(told)
        try:
            Artifact.from_bytes(data, where)
        except ArtifactError as error:
            return str(error)
        return None


def copy_of(url: str) -> Path:
    """Return the directory that keeps this node's copy of a store by URL.

    It is below `$LOCKSTEP_COPIES`, by default `~/.cache/lockstep/copies`.
    """
    root = os.environ.get("LOCKSTEP_COPIES") or default_folder() / "copies"
    return Path(root) / hashlib.sha256(url.encode()).hexdigest()[:16]


def _manifest(head: bytes, size: int, where: str) -> dict[str, Any]:
    reader = format.Reader(io.BytesIO(head), size, where)
    reader.want(format.STEP)
    return reader.manifest


def _is_artifact(key: str) -> bool:
    name, _, digest = key.partition("/")
    return name.endswith(SUFFIX) and len(digest) == 64 and not digest.strip("0123456789abcdef")
