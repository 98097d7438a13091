"""An artifact's way to the nodes and ranks that lack it: by the store, else from peer to peer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lockstep.fleet.client import Client
from lockstep.fleet.faults import Fault
from lockstep.fleet.peers import Artifact, NoHolder, Peers
from lockstep.fleet.say import waits
from lockstep.fleet.state import State
from lockstep.fleet.store import ArtifactStore
from lockstep.fleet.waiting import Waits
from lockstep.fleet.wire import digest_of as digest_of


class Shipping:
    """One artifact's way to this rank, or from it to others.

    A node's leader takes it from the store where that has the very bytes, else from
    a tree of peers, and keeps them on its node. Its node's other ranks then read what it kept, or
    take it from the leader where nothing could be kept.

    Args:
        client: the main thread's connection.
        waits: how to wait.
        state: this rank.
        topic: keys' common start.
        done: digest, size, holder (`by`) and the holder's node of what counts; of a hit also how
            many ranks lack it.
        node: this rank's node.
        leads: whether this rank fetches for its node.
        nodes: that take part; None: all.
    """

    def __init__(
        self,
        client: Client,
        waits: Waits,
        state: State,
        topic: str,
        done: dict[str, Any],
        node: int,
        leads: bool,
        nodes: Sequence[int] | None = None,
    ) -> None:
        self._waits, self._state, self._node = waits, state, node
        self._leads, self._done, self._said = leads, done, 0.0
        artifact = Artifact(done["digest"], done["size"], done["node"])
        self._peers = Peers(
            client, topic, artifact, state.rank, node,
            nodes=nodes, leads=leads, timing=state.timing, heed=self._heed,
        )  # fmt: skip

    def hold(self, data: bytes) -> None:
        """Let others have what this rank holds, where it leads its node or is the one that built.

        Where no rank lacks it, nothing is opened.
        """
        if self._leads or self._done["by"] == self._state.rank:
            self._offer(data)

    def fetch(self, name: str, store: ArtifactStore) -> tuple[bytes, bool]:
        """Return the bytes with the right digest, and whether this node's next start has them too.

        Raises:
            FleetError: a rank failed meanwhile, or no holder gives them.
        """
        if not self._leads:
            key = self._peers.key_of(self._node)
            self._waits.wait_for(key, self._leader, self._state.timing.start)
        data = store.read(name, digest=self._done["digest"], fetch=self._leads)
        kept = data is not None
        if data is None:
            data = self._from_peers()
            kept = self._leads and not store.pinned and store.keep(name, data)
        if self._leads:
            self._offer(data)
        return data, kept

    def end(self) -> None:
        """Serve no more: every rank has confirmed what it holds, or the job has failed."""
        self._peers.close()

    def _offer(self, data: bytes) -> None:
        if not self._done.get("lack", 1):
            return
        try:
            self._peers.offer(data)
        except OSError as error:
            self._state.say(f"warning: this rank serves no artifact to others: {error}")
            self._peers.announce()

    def _from_peers(self) -> bytes:
        try:
            came = self._peers.fetch()
        except NoHolder as error:
            raise self._waits.post(self._nobody(error)).error() from None
        self._state.journal.event("shipped", digest=self._done["digest"], **came.event())
        return came.data

    def _heed(self, seconds: float, what: str) -> None:
        """Go on waiting, unless there is a fault; say for what every few seconds."""
        self._state.raise_fault()
        if self._state.speaks and time.monotonic() - self._said >= self._state.timing.say:
            if self._said:
                self._state.say(f"rank {self._state.rank} {waits(seconds, what)}")
            self._said = time.monotonic()

    def _leader(self, seconds: float) -> str:
        return waits(seconds, f"its node's first rank to fetch {self._done['digest'][:12]}")

    def _nobody(self, error: NoHolder) -> Fault:
        return Fault(
            kind="error",
            rank=self._state.rank,
            what=f"rank {self._state.rank} gets the artifact from no rank that has it",
            got=str(error),
            want=f"{self._done['size']} bytes, sha256 {self._done['digest']}",
            why="a store that is one node's alone is shipped from process to process",
            fix="open the nodes' ports to each other, as the collectives need it, or share a store",
        )
