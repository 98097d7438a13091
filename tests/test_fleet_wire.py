"""Bytes between two processes: whole, refused, damaged on their way, broken off and taken up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from lockstep.fleet import wire
from lockstep.fleet.wire import Busy, Lost, Parts, Server, digest_of, receive

TOKEN = bytes(range(32))
DATA = bytes(range(256)) * 40
CHUNKS = 11  # of 1000 bytes

Change = Callable[[int, bytes], bytes | None]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CHUNK", 1000)


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server(DATA, digest_of(DATA), TOKEN, "localhost")
    yield serving
    serving.close()


def take(port: int, parts: Parts, token: bytes = TOKEN, digest: str = digest_of(DATA)) -> int:
    """Receive from a port; return how often it was heeded."""
    heeded: list[int] = []
    receive(("127.0.0.1", port), token, digest, parts, 0.4, lambda: heeded.append(1))
    return len(heeded)


@contextlib.contextmanager
def relay(port: int, change: Change) -> Iterator[int]:
    """A port that passes on what a server sends, changed: `change(bytes so far, next bytes)`."""
    listening = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        near, _ = listening.accept()
        far = socket.create_connection(("127.0.0.1", port))
        with near, far, contextlib.suppress(ConnectionError):  # a receiver that gives up resets
            far.sendall(near.recv(1000))
            count = 0
            while data := far.recv(500):
                passed = change(count, data)
                if passed is None:
                    return
                count += len(data)
                near.sendall(passed)

    thread = threading.Thread(target=run)
    thread.start()
    yield listening.getsockname()[1]
    thread.join(5)
    listening.close()


@pytest.mark.parametrize("data", [DATA, DATA[:1000], DATA[:999], b""])
def test_what_arrives_is_what_was_sent(data: bytes) -> None:
    serving = Server(data, digest_of(data), TOKEN, "localhost")
    parts = Parts(len(data))
    heeded = take(serving.port, parts, digest=digest_of(data))
    serving.close()
    assert parts.whole and parts.take() == data and parts.came == len(data)
    assert heeded == parts.chunks


def test_who_has_not_the_token_gets_nothing(server: Server) -> None:
    parts = Parts(len(DATA))
    with pytest.raises(Lost, match="it closed the connection"):
        take(server.port, parts, token=bytes(32))
    assert parts.count == 0


def test_another_artifact_is_told(server: Server) -> None:
    with pytest.raises(Lost, match="it has another artifact"):
        take(server.port, Parts(7), digest=digest_of(b"another"))


def test_a_flipped_byte_is_found_where_it_is_and_the_rest_comes_again(server: Server) -> None:
    def flip(count: int, data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:] if 4500 < count <= 5000 else data

    parts = Parts(len(DATA))
    with relay(server.port, flip) as port, pytest.raises(Lost, match="chunk 4 was damaged on its"):
        take(port, parts)
    assert parts.count == 4 and parts.came == 4000
    assert take(server.port, parts) == CHUNKS - 4
    assert parts.take() == DATA


def test_a_connection_that_breaks_is_taken_up_at_the_missing_chunk(server: Server) -> None:
    parts = Parts(len(DATA))
    with relay(server.port, lambda count, data: None if count > 6000 else data) as port:
        with pytest.raises(Lost, match="it closed the connection"):
            take(port, parts)
    came = parts.count
    assert 4 <= came < CHUNKS
    assert take(server.port, parts) == CHUNKS - came
    assert parts.take() == DATA


def test_a_holder_that_is_silent_is_given_up_and_heeded_meanwhile() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # the kernel accepts for it
        heeded: list[int] = []
        with pytest.raises(Lost, match=r"it sent nothing for 0\.4 s"):
            port = stopped.getsockname()[1]
            address = ("127.0.0.1", port)
            receive(address, TOKEN, digest_of(DATA), Parts(9), 0.4, lambda: heeded.append(1))
        assert len(heeded) == 3


def test_nobody_there_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(Lost, match="the connection broke: Connection refused"):
        take(port, Parts(9))


def test_a_server_sends_to_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST", 0)
    serving = Server(DATA, digest_of(DATA), TOKEN, "localhost")
    with pytest.raises(Busy, match="it sends to 0 others"):
        take(serving.port, Parts(len(DATA)))
    serving.close()
    with pytest.raises(Lost, match="refused"):
        take(serving.port, Parts(len(DATA)))


def test_what_a_fault_raises_ends_it(server: Server) -> None:
    def fault() -> None:
        raise RuntimeError("rank 3 failed")

    with pytest.raises(RuntimeError, match="rank 3 failed"):
        receive(("127.0.0.1", server.port), TOKEN, digest_of(DATA), Parts(len(DATA)), 0.4, fault)


def test_others_reach_a_machine_by_its_way_to_the_rendezvous_host(monkeypatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert wire.reachable() == "localhost"
    monkeypatch.setenv("MASTER_ADDR", "127.0.1.1")
    assert wire.reachable() == "127.0.1.1"  # by the name that the others have for it
    assert wire.is_loopback("::1") and not wire.is_loopback("10.0.0.1")
