"""One artifact's bytes from one process to another, over TCP, in chunks verified as they arrive.

A connection begins with the job's token, the artifact's digest and the first chunk that is wanted;
the answer is one byte, then each chunk behind its length and its sha256. So a broken connection is
taken up at the chunk that is missing, from this holder or from another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
from collections.abc import Callable

CHUNK = 4 << 20  # bytes
SLICE = 1 << 20  # bytes
MOST = 16  # whom a server sends to at once; others are told that it is busy
ASK_S = 10.0  # so long a server waits for a question, and for a reader that takes nothing
CONNECT_S = 3.0
_ASK = struct.Struct(">8s32s32sI")  # magic, token, digest, first chunk
_FRAME = struct.Struct(">I32s")  # a chunk's length and sha256
_MAGIC = b"lockstp1"
_YES, _BUSY, _OTHER = b"y", b"b", b"o"

Heed = Callable[[], None]


class Lost(Exception):
    """A holder gives no more: it is gone, silent or busy, or what came from it is damaged."""


class Busy(Lost):
    """A holder sends to as many as it can."""


def digest_of(data: bytes | bytearray) -> str:
    """Return the sha256 of bytes, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class Parts:
    """What has come of an artifact so far: its first chunks, each of them verified.

    Args:
        size: of the whole, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._bytes, self.count = bytearray(size), 0
        self.chunks = max(1, -(-size // CHUNK))

    @property
    def came(self) -> int:
        """Bytes that have come."""
        return min(self.count * CHUNK, len(self._bytes))

    @property
    def whole(self) -> bool:
        """Whether all have come."""
        return self.count == self.chunks

    def room(self) -> memoryview:
        """Where the next chunk goes."""
        return memoryview(self._bytes)[self.count * CHUNK : (self.count + 1) * CHUNK]

    def take(self) -> bytes:
        """Return the whole."""
        return bytes(self._bytes)

    def clear(self) -> None:
        """Forget what came."""
        self.count = 0


class Server:
    """Sends one artifact to whoever has the job's token, until it is closed.

    Args:
        data: the artifact.
        digest: its sha256, as hexadecimal digits.
        token: 32 bytes that only the job knows.
        host: where other processes reach this one; on a loopback address nobody else can.

    Raises:
        OSError: no port can be opened.
    """

    def __init__(self, data: bytes, digest: str, token: bytes, host: str) -> None:
        self._data, self._digest, self._token = memoryview(data), bytes.fromhex(digest), token
        self._chunks: dict[int, bytes] = {}  # a chunk's number -> its sha256
        self._free = threading.Semaphore(MOST)
        self._socket = _listen(host)
        self.host, self.port = host, self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="lockstep-serve", daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that are open end by themselves."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError, Lost):
            ask = bytearray(_ASK.size)
            _Reader(peer, ASK_S, lambda: None).fill(memoryview(ask))
            peer.settimeout(ASK_S)
            magic, token, digest, first = _ASK.unpack(ask)
            if magic != _MAGIC or not hmac.compare_digest(token, self._token):
                return
            if digest != self._digest:
                peer.sendall(_OTHER)
            elif not self._free.acquire(blocking=False):
                peer.sendall(_BUSY)
            else:
                try:
                    peer.sendall(_YES)
                    self._send(peer, first)
                finally:
                    self._free.release()

    def _send(self, peer: socket.socket, first: int) -> None:
        for index in range(first, max(1, -(-len(self._data) // CHUNK))):
            chunk, mark = self._chunk(index)
            peer.sendall(_FRAME.pack(len(chunk), mark))
            for start in range(0, len(chunk), SLICE):  # each within the limit for a reader
                peer.sendall(chunk[start : start + SLICE])

    def _chunk(self, index: int) -> tuple[memoryview, bytes]:
        """A chunk and its sha256, which is reckoned once."""
        chunk = self._data[index * CHUNK : (index + 1) * CHUNK]
        if index not in self._chunks:
            self._chunks[index] = hashlib.sha256(chunk).digest()
        return chunk, self._chunks[index]


def receive(
    address: tuple[str, int], token: bytes, digest: str, parts: Parts, quiet: float, heed: Heed
) -> None:
    """Take the chunks that are missing from one holder.

    Args:
        address: its host and port.
        parts: what came before; it keeps what comes, also where this raises.
        quiet: seconds in which nothing comes, after which the holder is given up.
        heed: called at each chunk and at least once a second; what it raises ends this.

    Raises:
        Lost: not all came.
    """
    try:
        with socket.create_connection(address, timeout=min(CONNECT_S, quiet)) as peer:
            peer.sendall(_ASK.pack(_MAGIC, token, bytes.fromhex(digest), parts.count))
            reader = _Reader(peer, quiet, heed)
            answer = bytearray(1)
            reader.fill(memoryview(answer))
            if bytes(answer) == _BUSY:
                raise Busy(f"it sends to {MOST} others")
            if bytes(answer) != _YES:
                raise Lost("it has another artifact")
            while not parts.whole:
                _take_chunk(reader, parts)
                heed()
    except TimeoutError as error:
        raise Lost(f"no connection within {min(CONNECT_S, quiet):g} s") from error
    except OSError as error:
        raise Lost(f"the connection broke: {error.strerror or error}") from error


def _take_chunk(reader: _Reader, parts: Parts) -> None:
    head, room = bytearray(_FRAME.size), parts.room()
    reader.fill(memoryview(head))
    length, digest = _FRAME.unpack(head)
    if length != len(room):
        raise Lost(f"chunk {parts.count} has {length} bytes in place of {len(room)}")
    reader.fill(room)
    if hashlib.sha256(room).digest() != digest:
        raise Lost(f"chunk {parts.count} was damaged on its way")
    parts.count += 1


class _Reader:
    """Fills buffers from a socket, and counts the polls in which nothing comes."""

    def __init__(self, peer: socket.socket, quiet: float, heed: Heed) -> None:
        self._peer, self._heed, self._quiet = peer, heed, quiet
        self._poll = min(1.0, quiet / 4)

    def fill(self, room: memoryview) -> None:
        self._peer.settimeout(self._poll)
        silent = 0
        while room:
            try:
                count = self._peer.recv_into(room)
            except TimeoutError:
                silent += 1
                if silent * self._poll >= self._quiet:
                    raise Lost(f"it sent nothing for {self._quiet:g} s") from None
                self._heed()
                continue
            if not count:
                raise Lost("it closed the connection")
            room, silent = room[count:], 0


def _listen(host: str) -> socket.socket:
    """A socket that others reach at a host: of both families, or of the loopback's alone."""
    if is_loopback(host):
        v6 = ":" in host
        family = socket.AF_INET6 if v6 else socket.AF_INET
        return socket.create_server(("::1" if v6 else "127.0.0.1", 0), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name or number, for itself alone."""
    return host in ("localhost", "::1") or host.startswith("127.")


def reachable() -> str:
    """Return how other machines reach this one: the address it has toward the rendezvous host.

    Where that is this machine itself, by the rendezvous host's own name.
    """
    master = os.environ.get("MASTER_ADDR") or "localhost"
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as toward:
            toward.connect(address)  # no packet is sent; the kernel only chooses a way
            mine = toward.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return master if is_loopback(mine) else mine
