"""One thread's own connection to the rendezvous store, with values as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

SLICE = 128  # keys a multi_get; it is superlinear: 16384 at once take 24 s, by 128 0.1 s
FOREVER = timedelta(days=365)


class StoreGone(Exception):
    """The store's host does not answer any more, and will not again; `at` is its address."""

    def __init__(self, text: str, at: str = "") -> None:
        super().__init__(text)
        self.at = at


class Client:
    """A connection of one thread: a call that blocks blocks every other user of its connection.

    Values are JSON with sorted keys, so that equal values are equal bytes. Counters are apart: an
    `add` on anything else makes the server drop the connection.

    Args:
        store: the job's store; it is cloned, never used itself.
        prefix: put before every key; holds the run and its restart count.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        from torch.distributed import PrefixStore

        self.at, self.inside = address_of(store), False
        self._store = PrefixStore(prefix, store.clone())

    def put(self, key: str, value: Any) -> None:
        """Set a key to a JSON value."""
        with self._gone():
            self._store.set(key, encoded(value))

    def get(self, key: str) -> Any:
        """Return the value of a key that is there, else None."""
        with self._gone():
            return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def get_many(self, keys: Sequence[str]) -> list[Any]:
        """Return the values of keys that are all there."""
        values: list[Any] = []
        with self._gone():
            for start in range(0, len(keys), SLICE):
                values += map(json.loads, self._store.multi_get(list(keys[start : start + SLICE])))
        return values

    def has(self, *keys: str) -> bool:
        """Return whether keys are there, all of them."""
        with self._gone():
            return self._store.check(list(keys))

    def add(self, key: str, amount: int = 0) -> int:
        """Add to a counter and return it; 0 only looks."""
        with self._gone():
            return self._store.add(key, amount)

    def create(self, key: str, value: Any) -> Any:
        """Set a key if it is missing; return what it holds afterwards."""
        with self._gone():
            return json.loads(self._store.compare_set(key, "", encoded(value)))

    def swap(self, key: str, old: Any, new: Any) -> bool:
        """Change a key that is there from one value to another; return whether it happened."""
        with self._gone():
            return self._store.compare_set(key, encoded(old), encoded(new)).decode() == encoded(new)

    def put_bytes(self, key: str, data: bytes) -> None:
        """Set a key to raw bytes of less than 8 MiB, where the server drops the connection."""
        with self._gone():
            self._store.set(key, data)  # type: ignore[arg-type]  # takes bytes, is typed str

    def get_bytes(self, key: str) -> bytes:
        """Return the raw bytes of a key that is there."""
        with self._gone():
            return bytes(self._store.get(key))

    def remove(self, keys: Iterable[str]) -> None:
        """Delete keys."""
        with self._gone():
            for key in keys:
                self._store.delete_key(key)

    def wait_then(self, key: str, wake: Callable[[], None]) -> None:
        """Block until a key is there, then call `wake`; for a thread and a connection of its own.

        Slices with a timeout would do without that thread, but each prints two warnings from C++.
        """
        with self._gone():
            self._store.wait([key], FOREVER)
        wake()

    @contextmanager
    def _gone(self) -> Iterator[None]:
        from torch.distributed import DistError

        self.inside = True  # a stopped host holds every call: who watches must see that
        try:
            yield
        except DistError as error:
            raise StoreGone(f"{type(error).__name__}: {error}", self.at) from error
        finally:
            self.inside = False


def address_of(store: Store) -> str:
    """Return "host:port" of a store's host; "" of a store that has none.

    Example:
        >>> from torch.distributed import HashStore
        >>> address_of(HashStore())
        ''
    """
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return f"{store.host}:{store.port}" if hasattr(store, "host") else ""


def encoded(value: Any) -> str:
    """Return a value as the one JSON text that stands for it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
