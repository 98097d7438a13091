"""A tree of peers: each rank that holds an artifact serves the next ones, the store says who does.

Node g takes it from node (g - 1) // 4, when the first holder's node counts as node 0; so a job of
any size loads no process with more than a few others. Where the parent does not have it in time, or
does not give it, any other holder will do.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.fleet.client import Client
from lockstep.fleet.timing import Timing
from lockstep.fleet.wire import Busy, Lost, Parts, Server, digest_of, reachable, receive

FAN = 4
TRIES = 3  # of one holder, where nothing more comes from it
LOOK = 64  # holders of the list that are looked at for one that has not failed so often
TOKEN = "ship/token"

Heed = Callable[[float, str], None]
Holder = tuple[int, str, int]  # its rank, host and port


class NoHolder(Exception):
    """No holder gives an artifact; the text says whom this rank asked, and what became of it."""


@dataclass(frozen=True)
class Artifact:
    """What is shipped: its sha256 in hexadecimal digits, its bytes' number, its first node."""

    digest: str
    size: int
    root: int = 0


@dataclass(frozen=True)
class Came:
    """How an artifact came: its bytes, from which ranks, in how many seconds and connections."""

    data: bytes
    ranks: list[int]
    seconds: float
    connections: int

    def event(self) -> dict[str, object]:
        """What the journal keeps."""
        speed = len(self.data) / 1e6 / max(self.seconds, 1e-9)
        return {
            "bytes": len(self.data),
            "seconds": round(self.seconds, 4),
            "mb_per_s": round(speed, 1),
            "from_ranks": self.ranks,
            "connections": self.connections,
        }


class Peers:
    """The holders of one artifact: how to become one, and how to get it from them.

    A rank makes one of these for one artifact. Its keys carry addresses, and a token that nobody
    knows who cannot read the job's rendezvous store; the bytes go from process to process.

    Args:
        client: a connection to the rendezvous store, which this thread alone uses.
        topic: keys' common start; used for one artifact.
        artifact: what is shipped.
        rank, node: this process and its node.
        nodes: that take part, ascending; None: all, from 0 on.
        leads: whether it fetches for its node; others ask their own node first.
        timing: `peer` is how long a silent holder is waited for, and a parent that has not got it.
        heed: called with seconds and a text while this waits; what it raises ends the wait.

    Example:
        >>> from torch.distributed import TCPStore
        >>> store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        >>> what = Artifact(digest_of(b"bytes"), 5)
        >>> first, second = (Peers(Client(store, "run"), "t", what, n, n) for n in range(2))
        >>> first.offer(b"bytes")
        >>> second.fetch().data
        b'bytes'
        >>> first.close()
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        artifact: Artifact,
        rank: int,
        node: int,
        *,
        nodes: Sequence[int] | None = None,
        leads: bool = True,
        timing: Timing | None = None,
        heed: Heed = lambda seconds, text: None,
    ) -> None:
        self._client, self._topic, self._artifact = client, topic, artifact
        self._rank, self._node, self._nodes, self._leads = rank, node, nodes, leads
        self._timing, self._heed = timing or Timing(), heed
        self._server: Server | None = None
        self._begin = 0.0

    def offer(self, data: bytes) -> None:
        """Serve an artifact that this rank has verified, from now on until `close`.

        Raises:
            OSError: no port can be opened.
        """
        token, digest = self._token(), self._artifact.digest
        self._server = Server(data, digest, token, reachable())
        self.announce(self._server.host, self._server.port)

    def announce(self, host: str = "", port: int = 0) -> None:
        """Say that this node has the artifact, and where it is served; by default nowhere."""
        holder = [self._rank, host, port]
        self._client.create(self.key_of(self._node), holder)
        if port:
            index = self._client.add(f"{self._topic}/holders", 1) - 1
            self._client.put(f"{self._topic}/holder/{index}", holder)

    def key_of(self, node: int) -> str:
        """Return the key that is there once a node has the artifact."""
        return f"{self._topic}/at/{node}"

    def fetch(self) -> Came:
        """Get the artifact from its holders, all of it verified.

        Raises:
            NoHolder: none gives it: for `dead` seconds no chunk came, or for `start` seconds all
                were busy.
        """
        self._begin, parts = time.monotonic(), Parts(self._artifact.size)
        token, asked, ranks, number = self._token(), _Asked(), list[int](), 0
        for rank, host, port in self._holders(parts, asked):
            before, number = parts.count, number + 1
            waits_for = f"{self._what(parts)} from rank {rank} at {host}:{port}"
            try:
                quiet, digest = self._timing.peer, self._artifact.digest
                heed = functools.partial(self._tell, waits_for)
                receive((host, port), token, digest, parts, quiet, heed)
                ranks = _with(ranks, rank)
                data = parts.take()
                if digest_of(data) == digest:
                    return Came(data, ranks, time.monotonic() - self._begin, number)
                asked.gave_another(ranks)
                parts.clear()
                ranks = []
                raise Lost("every chunk came whole, and together they are another artifact")
            except Busy:
                asked.busy(rank, self._pause(waits_for))
            except Lost as error:
                asked.failed(rank, f"{host}:{port}: {error}, after {parts.came} bytes")
                if parts.count > before:
                    asked.start_again()
                    ranks = _with(ranks, rank)
        raise AssertionError("holders are asked until one gives it")

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _holders(self, parts: Parts, asked: _Asked) -> Iterator[Holder]:
        """Whom to ask next: the parent, then any other holder in turn."""
        first = self._first()
        if first is not None:
            yield first
        still, count = 0.0, parts.count
        for turn in itertools.count():
            if parts.count != count:
                still, count = 0.0, parts.count
            if still >= self._timing.dead or asked.busy_s >= self._timing.start:
                raise NoHolder(self._nobody(parts, asked))
            holder = self._any(turn, asked)
            if holder is None or asked.times(holder[0]):
                still += self._pause(f"{self._what(parts)} from another holder")
            if holder is not None:
                yield holder

    def _first(self) -> Holder | None:
        """The holder on the node that this rank asks first, if it has it in time and serves."""
        node = (
            parent_of(self._node, self._artifact.root, self._nodes) if self._leads else self._node
        )
        waited, slice_s = 0.0, 0.01
        while (holder := self._client.get(self.key_of(node))) is None:
            if waited >= self._timing.peer:
                return None
            waited += self._pause(f"node {node} to have the artifact", slice_s)
            slice_s *= 2
        rank, host, port = holder
        return (rank, host, port) if port else None

    def _any(self, turn: int, asked: _Asked) -> Holder | None:
        """A holder that may still give it; each rank begins at another place of their list."""
        count = self._client.add(f"{self._topic}/holders")
        for step in range(min(count, LOOK)):
            index = (self._rank + turn + step) % count
            found = self._client.get(f"{self._topic}/holder/{index}")
            if found is not None and asked.times(found[0]) < TRIES:
                return found[0], found[1], found[2]
        return None

    def _token(self) -> bytes:
        return bytes.fromhex(self._client.create(TOKEN, secrets.token_hex(32)))

    def _pause(self, waits_for: str, seconds: float = 60.0) -> float:
        seconds = min(seconds, self._timing.beat)
        self._tell(waits_for)
        time.sleep(seconds)
        return seconds

    def _tell(self, waits_for: str) -> None:
        self._heed(time.monotonic() - self._begin, waits_for)

    def _what(self, parts: Parts) -> str:
        size = self._artifact.size
        return f"the last {(size - parts.came) / 1e6:.1f} of {size / 1e6:.1f} MB"

    def _nobody(self, parts: Parts, asked: _Asked) -> str:
        rows = "\n".join(asked.said) or "no rank has it"
        return f"{parts.came} of {self._artifact.size} bytes came; {rows}"


class _Asked:
    """Whom a rank asked, and what became of it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.busy_s = 0.0
        self._lost, self._wrong = Counter[int](), Counter[int]()

    def times(self, rank: int) -> int:
        """How often a holder gave nothing, or its part of what was another artifact."""
        return self._lost[rank] + self._wrong[rank]

    def failed(self, rank: int, text: str) -> None:
        """Note that a holder gave no more."""
        self.said = [*self.said[-7:], f"rank {rank} at {text}"]
        self._lost[rank] += 1

    def busy(self, rank: int, seconds: float) -> None:
        """Note that a holder was busy, and how long this rank then waited."""
        self.said = [*self.said[-7:], f"rank {rank} was busy"]
        self.busy_s += seconds

    def gave_another(self, ranks: list[int]) -> None:
        """Note whose chunks together are another artifact."""
        self._wrong.update(ranks)

    def start_again(self) -> None:
        """Something came: who failed before may be asked again."""
        self._lost.clear()
        self.busy_s = 0.0


def _with(ranks: list[int], rank: int) -> list[int]:
    return ranks if rank in ranks else [*ranks, rank]


def parent_of(node: int, root: int, nodes: Sequence[int] | None = None) -> int:
    """Return the node that another one asks first: the root itself and who is no part ask the root.

    Example:
        >>> [parent_of(node, 0) for node in (0, 1, 4, 5, 20, 21)]
        [0, 0, 0, 1, 4, 5]
        >>> [parent_of(node, 8, [2, 4, 6, 8, 10, 12]) for node in (2, 8, 12)]
        [8, 8, 4]
    """
    if nodes is None:
        return _swapped(max(0, _swapped(node, root) - 1) // FAN, root)
    if node not in nodes or root not in nodes:
        return root
    return nodes[parent_of(nodes.index(node), nodes.index(root))]


def _swapped(node: int, root: int) -> int:
    """A node's number where the root is node 0, and back."""
    return {0: root, root: 0}.get(node, node)
