"""Objects below a URL, by fsspec: whole, within a limit of time, each failure told in words."""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lockstep.errors import StoreError
from lockstep.fleet.say import say, waits

PIECE = 32 << 20  # bytes of one request
SAY_S = 10.0
PAUSES_S = (0.1, 0.5, 2.0)  # before a request that failed is made again
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs"}
_EXTRAS = {"s3": "s3", "s3a": "s3"}
_TIMES = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")
_NO_BUCKET = ("NoSuchBucket", "bucket does not exist")
_LASTING = (FileNotFoundError, PermissionError, ImportError, ValueError, TypeError)
_DENIED = ("AccessDenied", "Forbidden", "credentials", "InvalidAccessKeyId", "Signature")

T = TypeVar("T")


class Unreachable(StoreError):
    """A store that does not answer now; a later try may find it."""


@dataclass(frozen=True)
class Found:
    """An object: its path below the URL, its size in bytes, when it was put in the store's time."""

    name: str
    size: int
    time: float


class Objects:
    """What lies below a URL.

    Nothing is imported or asked before it is needed. Every request is made in a thread that is left
    behind at the limit, since no protocol's own limits can be relied on.

    Args:
        url: of the folder: s3://bucket/prefix.
        rank: who says what it waits for.
        limit_s: seconds without an answer to one request, after which the store is unreachable.
    """

    def __init__(self, url: str, rank: int, limit_s: float) -> None:
        self.url, self._rank, self._limit_s = url, rank, limit_s
        self.protocol, self._root = url.partition("://")[0], ""
        self._known: Any = None

    def list(self, folder: str = "") -> list[Found]:
        """Return the objects below a folder of it; none where there is no such folder."""

        def ask(fs: Any) -> list[Found]:
            rows = fs.find(self._path(folder).rstrip("/"), detail=True)
            return [_found(self._root, row) for row in rows.values()]

        return self._within(f"list {folder or 'it'}", ask, none=[])

    def get(self, name: str, size: int) -> bytes | None:
        """Return an object's bytes, None where there is none; of the size that is expected."""
        parts = []
        for start in range(0, size, PIECE):
            part = self._piece(name, start, min(start + PIECE, size))
            if part is None:
                return None
            parts.append(part)
        return b"".join(parts)

    def head(self, name: str, size: int) -> bytes | None:
        """Return an object's first bytes, None where there is none."""
        return self._piece(name, 0, size)

    def put(self, name: str, data: bytes) -> None:
        """Put a whole object: it is there once all of it is."""

        def ask(fs: Any) -> None:
            try:
                fs.pipe_file(self._path(name), data)
            except FileNotFoundError as error:  # a protocol that has folders, and none is there
                if _tells(error, _NO_BUCKET):
                    raise
                fs.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
                fs.pipe_file(self._path(name), data)

        patience = self._limit_s + len(data) / 1e6  # a request of its own: 1 MB/s is waited for
        self._within(f"take {name}, {len(data) / 1e6:.1f} MB", ask, limit_s=patience)

    def remove(self, name: str) -> None:
        """Delete an object, where it is there."""
        self._within(f"delete {name}", lambda fs: fs.rm_file(self._path(name)))

    def _piece(self, name: str, start: int, end: int) -> bytes | None:
        def ask(fs: Any) -> bytes:
            return bytes(fs.cat_file(self._path(name), start=start, end=end))

        return self._within(f"give {name}", ask)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _fs(self) -> Any:
        if self._known is None:
            from fsspec.core import url_to_fs

            # One of our own: fsspec would share it by its arguments, whatever its credentials are.
            own = {"use_listings_cache": False, "skip_instance_cache": True}
            self._known, self._root = url_to_fs(self.url, **own, **_options(self.protocol))
        return self._known

    def _again(self, ask: Callable[[Any], T]) -> T:
        """Ask, and ask again after a failure that may pass."""
        for pause in PAUSES_S:
            try:
                return ask(self._fs())
            except Exception as error:
                if isinstance(error, _LASTING) or _tells(error, _NO_BUCKET + _DENIED):
                    raise
            time.sleep(pause)
        return ask(self._fs())

    def _within(
        self,
        doing: str,
        ask: Callable[[Any], T],
        *,
        none: Any = None,
        limit_s: float | None = None,
    ) -> Any:
        """Ask in a thread of its own; `none` where the object is not there.

        Raises:
            Unreachable: no answer within the limit, or the connection failed.
            StoreError: the store is set wrongly: no such bucket, denied, a missing package.
        """
        answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answers.put((self._again(ask), None))
            except BaseException as error:
                answers.put((None, error))

        threading.Thread(target=run, name=f"lockstep-store {doing}", daemon=True).start()
        limit, waited = limit_s or self._limit_s, 0.0
        while True:
            step = min(SAY_S, limit - waited)
            try:
                answer, error = answers.get(timeout=step)
                break
            except queue.Empty:
                waited += step
            if waited >= limit:
                raise self._silent(doing, limit)
            say(self._rank, f"rank {self._rank} {waits(waited, f'{self.url} to {doing}')}")
        if error is None:
            return answer
        if isinstance(error, FileNotFoundError) and not _tells(error, _NO_BUCKET):
            return none
        raise self._told(doing, error) from error

    def _silent(self, doing: str, limit: float) -> Unreachable:
        return Unreachable(
            f"the store does not answer: it was to {doing}",
            where=self.url,
            got=f"nothing within {limit:g} s",
            want="an answer",
            fix=[
                f"see that this machine reaches it{_endpoint(self.protocol)}",
                f"LOCKSTEP_TIMING=remote={2 * limit:g} waits longer",
            ],
        )

    def _told(self, doing: str, error: BaseException) -> StoreError:
        got = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError):
            return self._no_package(got)
        if isinstance(error, ValueError) and "not known" in str(error).lower():
            return StoreError(
                f"no store speaks {self.protocol}://",
                where=self.url,
                got=got,
                want="a directory, or a protocol of fsspec: s3, gs, abfs, memory, ...",
            )
        if _tells(error, _NO_BUCKET):
            bucket = self.url.partition("://")[2].partition("/")[0]
            return StoreError(
                f"the store has no bucket {bucket}",
                where=self.url,
                got=got,
                want="a bucket that is there: Lockstep makes none",
                fix=f"make it, or mend the URL: {self.protocol}://BUCKET/PREFIX",
            )
        if isinstance(error, PermissionError) or _tells(error, _DENIED):
            return StoreError(
                f"the store refuses this job: it was to {doing}",
                where=self.url,
                got=got,
                want="credentials that may list, read and write below this URL",
                fix=_credentials(self.protocol, self.url),
            )
        return Unreachable(
            f"the store fails: it was to {doing}",
            where=self.url,
            got=got,
            want="an answer",
            fix=f"see that this machine reaches it{_endpoint(self.protocol)}",
        )

    def _no_package(self, got: str) -> StoreError:
        extra, package = _EXTRAS.get(self.protocol), _PACKAGES.get(self.protocol)
        named = f"'torch-lockstep[{extra}]'" if extra else package or "what `got` names"
        return StoreError(
            f"a store at {self.protocol}:// needs a package that is not installed",
            where=self.url,
            got=got,
            want=package,
            fix=f"pip install {named}, on every node",
        )


def _options(protocol: str) -> dict[str, Any]:
    """What a protocol's package is told beside the URL.

    botocore draws its pauses from Python's generator, in a thread: the draws of the job, and the
    step that is captured meanwhile, would see it. `_again` asks again instead.
    """
    if protocol not in ("s3", "s3a"):
        return {}
    from fsspec.config import conf

    users = conf.get(protocol, {}).get("config_kwargs", {})
    return {"config_kwargs": {**users, "retries": {"max_attempts": 0}}}


def _found(root: str, row: dict[str, Any]) -> Found:
    name = str(row["name"]).strip("/").removeprefix(root.strip("/")).lstrip("/")
    return Found(name, int(row.get("size") or 0), _time(row))


def _time(row: dict[str, Any]) -> float:
    """When an object was put, in seconds since the epoch; 0 where the protocol does not tell."""
    value = next((row[key] for key in _TIMES if row.get(key) is not None), 0.0)
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime.datetime) else float(value)


def _tells(error: BaseException, words: tuple[str, ...]) -> bool:
    """Whether an error, or what it came from, says one of some words."""
    text = f"{type(error).__name__}: {error} {error.__cause__!r}"
    return any(word.lower() in text.lower() for word in words)


def _credentials(protocol: str, url: str) -> str:
    if protocol in ("s3", "s3a"):
        return (
            f"set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; try: aws s3 ls {url}"
        )
    return f"give this job credentials for {protocol}://, as its fsspec package reads them"


def _endpoint(protocol: str) -> str:
    return ", and AWS_ENDPOINT_URL" if protocol in ("s3", "s3a") else ""
