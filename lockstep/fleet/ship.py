"""Bytes to the nodes that do not have them: in chunks through the store, only when asked for."""

from __future__ import annotations

import hashlib
from typing import Any

from lockstep.fleet.client import Client
from lockstep.fleet.faults import Fault
from lockstep.fleet.say import waits
from lockstep.fleet.state import State
from lockstep.fleet.stores import ArtifactStore
from lockstep.fleet.waiting import Waits

CHUNK = 4 << 20  # bytes; the store drops a connection that brings 8 MiB


def digest_of(data: bytes) -> str:
    """Return the sha256 of bytes, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class Shipping:
    """One artifact's way from the rank that holds it to the nodes that lack it.

    A node's leader (local rank 0) looks into the store first, then asks; it keeps what it got, so
    that the node's other ranks and its next start find it. Only where it cannot, each rank asks.

    Args:
        client: the main thread's connection.
        waits: how to wait.
        state: this rank.
        topic: keys' common start.
        done: digest, size and holder (`by`) of what counts.
        node: this rank's node.
    """

    def __init__(
        self,
        client: Client,
        waits: Waits,
        state: State,
        topic: str,
        done: dict[str, Any],
        node: int,
    ) -> None:
        self._client, self._waits, self._state = client, waits, state
        self._topic, self._node = topic, node
        self._digest, self._size, self._by = done["digest"], done["size"], done["by"]
        self._sent = False

    def fetch(self, name: str, store: ArtifactStore) -> tuple[bytes, bool]:
        """Return the bytes with the right digest, and whether the store now has them too.

        Raises:
            FleetError: a rank failed meanwhile, or what came is damaged.
        """
        key = f"{self._topic}/node/{self._node}"
        if self._state.local_rank > 0:
            self._waits.wait_for(key, self._leader, self._state.timing.start)
        data = store.read(name)
        if data is not None and digest_of(data) == self._digest:
            self._announce(key)
            return data, True
        data = self._receive()
        leads = self._state.local_rank == 0 and not store.pinned
        kept = leads and store.write(name, data)
        self._announce(key)
        return data, kept

    def serve(self, data: bytes) -> None:
        """Send the bytes once somebody has asked; the holder calls this while it waits."""
        if not self._sent and self._client.has(f"{self._topic}/want"):
            self._sent = True
            for index in range(self._chunks()):
                chunk = data[index * CHUNK : (index + 1) * CHUNK]
                self._client.put_bytes(f"{self._topic}/blob/{index}", chunk)
            self._client.put(f"{self._topic}/sent", self._chunks())

    def clean(self) -> None:
        """Delete the chunks from the store once every rank has confirmed what it holds."""
        if self._sent:
            self._client.remove(f"{self._topic}/blob/{index}" for index in range(self._chunks()))

    def _receive(self) -> bytes:
        self._client.create(f"{self._topic}/want", True)
        count = self._waits.wait_for(f"{self._topic}/sent", self._sender, self._state.timing.start)
        keys = [f"{self._topic}/blob/{index}" for index in range(count)]
        data = b"".join(self._client.get_bytes(key) for key in keys)
        if digest_of(data) != self._digest:
            raise self._damaged(data)
        self._state.journal.event("shipped", bytes=len(data), digest=self._digest)
        return data

    def _announce(self, key: str) -> None:
        if self._state.local_rank == 0:
            self._client.put(key, True)

    def _damaged(self, data: bytes) -> Exception:
        fault = Fault(
            kind="error",
            rank=self._by,
            what=f"the artifact that came from rank {self._by} is damaged",
            got=f"{len(data)} bytes, sha256 {digest_of(data)}",
            want=f"{self._size} bytes, sha256 {self._digest}",
        )
        return self._waits.post(fault).error()

    def _chunks(self) -> int:
        return max(1, -(-self._size // CHUNK))

    def _leader(self, seconds: float) -> str:
        return waits(seconds, f"its node's first rank to fetch {self._digest[:12]}")

    def _sender(self, seconds: float) -> str:
        size = f"{self._size / 1e6:.1f} MB"
        return waits(seconds, f"rank {self._by} to send {size} ({self._digest[:12]})")
