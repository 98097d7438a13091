"""A store on a real S3 server: two that write, one that reads meanwhile, and every refusal."""

from __future__ import annotations

import contextlib
import http.server
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.errors import StoreError
from lockstep.fleet import ArtifactStore
from lockstep.fleet.wire import digest_of
from tests.s3_server import BUCKET, S3, s3_server
from tests.sources import ROOT

NAME = "step.lockstep"
URL = f"s3://{BUCKET}/jobs"

WRITER = """
import itertools, os, sys
from lockstep.fleet import ArtifactStore
letter, url, enough = sys.argv[1:]
store = ArtifactStore(url)
for count in itertools.count():
    if count >= 4 and (count == 200 or os.path.exists(enough)):
        break
    data = (letter + str(count % 4)).encode() * 100_000
    assert store.write("step.lockstep", data, required=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def node(server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that may use the server, on a node with no copies."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCKSTEP_COPIES", str(tmp_path / "copies"))
    return tmp_path


def test_what_one_node_writes_another_reads(node, monkeypatch) -> None:
    data = bytes(range(256)) * 20_000
    assert ArtifactStore(f"{URL}/a").read(NAME) is None
    assert ArtifactStore(f"{URL}/a").write(NAME, data, required=True)
    monkeypatch.setenv("LOCKSTEP_COPIES", str(node / "another"))
    monkeypatch.setattr("lockstep.fleet.objects.PIECE", 1 << 20)
    store = ArtifactStore(f"{URL}/a")
    assert store.read(NAME) == data
    kept = store.kept()
    assert [(one.name, one.size) for one in kept] == [(NAME, len(data))]
    assert abs(kept[0].used - time.time()) < 600
    assert store.kept()[0].running and store.drop(0).gone == ()


def test_two_write_one_key_and_a_reader_sees_whole_artifacts_alone(node, monkeypatch) -> None:
    url = f"{URL}/b"
    writers, enough = [], node / "enough"
    for letter in "xy":
        env = {**os.environ, "LOCKSTEP_COPIES": str(node / letter)}
        command = [sys.executable, "-c", WRITER, letter, url, str(enough)]
        writers.append(subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE))
    store, seen = ArtifactStore(url), set()
    while any(writer.poll() is None for writer in writers):
        data = store._fetched(NAME, None)
        if data is not None:
            assert data == data[:2] * 100_000
            seen.add(data[:2].decode())
        if len(seen) > 1:
            enough.touch()
    told = [writer.communicate()[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], told
    assert len(seen) > 1
    versions = {one.digest for one in store.kept()}
    assert versions == {digest_of(f"{x}{n}".encode() * 100_000) for x in "xy" for n in range(4)}
    store.drop(0)  # all are recent
    assert len(store.kept()) == 8


def test_a_bucket_that_is_not_there_is_told(node) -> None:
    store = ArtifactStore("s3://nobodys/jobs")
    for ask in (
        lambda: store.read(NAME),
        store.kept,
        lambda: store.write(NAME, b"", required=True),
    ):
        with pytest.raises(StoreError, match="LS230: the store has no bucket nobodys") as caught:
            ask()
        assert "at   s3://nobodys/jobs" in str(caught.value)
        assert "make it, or mend the URL: s3://BUCKET/PREFIX" in str(caught.value)


def test_wrong_credentials_are_told(node, monkeypatch, capsys) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    store = ArtifactStore(f"{URL}/c")
    with pytest.raises(
        StoreError, match="the store refuses this job: it was to list step"
    ) as caught:
        store.read(NAME)
    assert "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(caught.value)
    assert f"aws s3 ls {URL}/c" in str(caught.value)
    assert store.write(NAME, b"bytes") is True  # the build is not lost, and it is told
    assert "could not keep step.lockstep: this node alone keeps a copy" in capsys.readouterr().err


def test_a_server_that_is_silent_or_gone_is_left_aside(node, tmp_path, monkeypatch, capsys) -> None:
    with s3_server(tmp_path) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        ArtifactStore(URL).write(NAME, b"bytes", required=True)
        monkeypatch.setenv("LOCKSTEP_TIMING", "remote=3")
        server.stop()
        begin = time.monotonic()
        assert ArtifactStore(URL).read("other.lockstep") is None
        assert 2.9 < time.monotonic() - begin < 10
        assert "the store does not answer: it was to list other" in capsys.readouterr().err
        server.go_on()
    store = ArtifactStore(URL)
    assert store.read("other.lockstep") is None
    told = capsys.readouterr().err
    assert "LS230: the store " in told and f"at   {URL}" in told and "AWS_ENDPOINT_URL" in told
    assert store.read(NAME) == b"bytes"  # this node's copy


@contextlib.contextmanager
def failing(times: int) -> Iterator[tuple[str, list[str]]]:
    """A server that fails so many requests and then knows of nothing; what it was asked."""
    asked: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if NAME not in self.path:  # of an earlier test's thread, which still asks
                self.do_HEAD()
                return
            asked.append(self.path)
            self.send_response(503 if len(asked) <= times else 200)
            self.end_headers()
            kind = "Error" if len(asked) <= times else "ListBucketResult"
            self.wfile.write(f"<{kind}><Code>ServiceUnavailable</Code></{kind}>".encode())

        def do_HEAD(self) -> None:
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("times, told", [(3, 0), (9, 1)])
def test_a_failed_request_is_made_again_and_draws_nothing(
    node, monkeypatch, capsys, times: int, told: int
) -> None:
    with failing(times) as (endpoint, asked):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setattr("lockstep.fleet.objects.PAUSES_S", (0.01, 0.01, 0.01))
        before = random.getstate()
        assert ArtifactStore(URL).read(NAME) is None
        assert random.getstate() == before, "the job's draws"
        assert asked[:4] == 4 * asked[:1] and len(asked) == 5 - told
    assert capsys.readouterr().err.count("the store fails: it was to list step") == told
