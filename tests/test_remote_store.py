"""A store by URL: whole or not there, copied once a node, and what goes wrong is told in words."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lockstep.build.artifact import pack
from lockstep.build.program import Program
from lockstep.cli import main
from lockstep.errors import ArtifactError, StoreError, UsageError
from lockstep.fleet import ArtifactStore, Fleet
from lockstep.fleet.objects import Objects
from lockstep.fleet.stores import DirectoryStore, PinnedFile
from lockstep.fleet.wire import digest_of
from lockstep.journal import Journal
from lockstep.run.audit import MARK
from tests.sources import ROOT
from tests.test_audit import SAID, hidden, run

NAME = "step.lockstep"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A store in this process' memory, and a node whose copies are in `tmp_path`."""
    monkeypatch.setenv("LOCKSTEP_COPIES", str(tmp_path / "copies"))
    yield "memory://bucket/prefix"
    memory = fsspec.filesystem("memory")
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int = 1) -> None:
    """Be a process of another node: it has no copies."""
    monkeypatch.setenv("LOCKSTEP_COPIES", str(tmp_path / f"copies of {number}"))


def age(url: str, key: str, seconds: float) -> None:
    """Let an object be put so long ago."""
    file = fsspec.filesystem("memory").store[f"/{url.partition('://')[2]}/{key}"]
    now = datetime.datetime.now(tz=datetime.UTC)
    file.created = now - datetime.timedelta(seconds=seconds)


def test_a_place_names_a_kind_of_store(tmp_path: Path) -> None:
    assert type(ArtifactStore(tmp_path)) is DirectoryStore
    assert ArtifactStore(f"file://{tmp_path}").path == tmp_path
    assert type(ArtifactStore(tmp_path / "one.lockstep")) is PinnedFile
    with pytest.raises(UsageError, match="write s3://bucket/prefix, as text"):
        ArtifactStore(Path("s3://bucket/prefix"))
    with pytest.raises(UsageError, match="names one artifact"):
        ArtifactStore("s3://bucket/one.lockstep")
    with pytest.raises(StoreError, match="cannot name an artifact"):
        ArtifactStore("memory://bucket").where_of("../a")


def test_what_one_node_writes_another_fetches_once(url, tmp_path, monkeypatch) -> None:
    data, journal = b"bytes" * 200_000, tmp_path / "journal"
    assert ArtifactStore(url, journal=Journal(journal, 0)).write(NAME, data)
    another_node(tmp_path, monkeypatch)
    leader, other = (
        ArtifactStore(url, rank=rank, journal=Journal(journal, rank)) for rank in (4, 5)
    )
    assert other.read(NAME, fetch=False) is None
    assert leader.read(NAME) == data
    monkeypatch.setattr(Objects, "list", lambda *_: pytest.fail("the node has a copy"))
    assert other.read(NAME, fetch=False) == leader.read(NAME) == data
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    moved = [row for row in lines if row["event"] in ("put", "fetched")]
    assert [(row["event"], row["rank"], row["bytes"]) for row in moved] == [
        ("put", 0, 1_000_000), ("fetched", 4, 1_000_000),
    ]  # fmt: skip
    assert all(row["seconds"] >= 0 and row["mb_per_s"] > 0 and row["url"] == url for row in moved)


def test_of_two_that_wrote_one_name_the_last_counts_and_both_are_whole(url, tmp_path, monkeypatch):
    first, second = ArtifactStore(url), ArtifactStore(url)
    first.write(NAME, b"one")
    second.write(NAME, b"two")
    age(url, f"{NAME}/{digest_of(b'one')}", 60)
    another_node(tmp_path, monkeypatch)
    reader = ArtifactStore(url)
    assert reader.read(NAME) == b"two"
    assert reader.read(NAME, digest=digest_of(b"one")) == b"one"
    assert reader.read(NAME, digest=digest_of(b"three")) is None


def test_a_torn_object_is_passed_over_and_told(url, tmp_path, monkeypatch, capsys) -> None:
    ArtifactStore(url).write(NAME, b"the older one")
    torn = f"{url}/{NAME}/{digest_of(b'the whole of it')}"
    fsspec.filesystem("memory").pipe_file(torn, b"the whole")
    age(url, f"{NAME}/{digest_of(b'the older one')}", 60)
    another_node(tmp_path, monkeypatch)
    assert ArtifactStore(url).read(NAME) == b"the older one"
    assert f"warning: {torn} is damaged, and passed over" in capsys.readouterr().err


def test_an_object_that_is_too_large_is_refused(url, tmp_path, monkeypatch) -> None:
    ArtifactStore(url).write(NAME, b"12345")
    another_node(tmp_path, monkeypatch)
    with pytest.raises(StoreError, match="too large"):
        ArtifactStore(url, limit=4).read(NAME)


# ---- a limit ---------------------------------------------------------------------------------


def test_the_longest_unused_goes_first_and_what_is_recent_stays(url, monkeypatch, capsys) -> None:
    store, keys = ArtifactStore(url), {}
    for number, name in enumerate("abc"):
        data = name.encode() * 10
        store.write(f"{name}.lockstep", data)
        keys[name] = f"{name}.lockstep/{digest_of(data)}"
        age(url, keys[name], 9000 - number)
    fsspec.filesystem("memory").pipe_file(f"{url}/{keys['a']}.used", b"")  # a job took it now
    age(url, f"{keys['a']}.used", 700)
    assert [one.name[0] for one in store.kept()] == ["b", "c", "a"]
    monkeypatch.setenv("LOCKSTEP_STORE_LIMIT", "25")
    store.write("d.lockstep", b"d" * 10)
    assert "2 unused artifacts dropped, 0.0 MB: memory://bucket/prefix" in capsys.readouterr().err
    assert [one.name[0] for one in store.kept()] == ["a", "d"]
    dropped = store.drop(0)
    assert [one.name[0] for one in dropped.gone] == ["a"] and dropped.left == 10
    assert [one.name[0] for one in dropped.stay] == ["d"]
    left = f"/bucket/prefix/d.lockstep/{digest_of(b'd' * 10)}"
    assert fsspec.filesystem("memory").find("/bucket") == [left]


def test_a_node_notes_once_an_hour_that_it_uses_an_artifact(url) -> None:
    store = ArtifactStore(url)
    store.write(NAME, b"bytes")
    mark = f"{url}/{NAME}/{digest_of(b'bytes')}.used"
    store.read(NAME)
    _threads_end()
    assert not fsspec.filesystem("memory").exists(mark)
    os.utime(store.path_of(NAME), (0, 0))
    store.read(NAME)
    _threads_end()
    assert fsspec.filesystem("memory").exists(mark)


def _threads_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("lockstep-used"):
            thread.join(5)


def test_the_verbs_take_a_url(url, capsys) -> None:
    data = pack({"step": "train"}, Program("graph", "def call(inputs): ...\n", {}, {})).to_bytes()
    ArtifactStore(url).write(NAME, data)
    here = ["--store", url]
    assert main(["store", "ls", *here]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("step.lockstep  train, graph  in use")
    assert lines[1] == f"1 artifacts, {len(data)} bytes: {url}"
    assert main(["store", "verify", *here]) == 0
    assert "1 of 1 artifacts are sound" in capsys.readouterr().out
    assert main(["store", "gc", "--limit", "0", *here]) == 1
    assert "kept    step.lockstep" in capsys.readouterr().out
    key = f"{url}/{NAME}/{digest_of(data)}"
    fsspec.filesystem("memory").pipe_file(key, data[:-1] + b"?")
    assert main(["store", "verify", *here]) == 1
    assert "LS210: changed bytes" in capsys.readouterr().err
    age(url, f"{NAME}/{digest_of(data)}", 7200)
    assert main(["store", "gc", "--limit", "0", *here]) == 0
    assert "dropped step.lockstep" in capsys.readouterr().out


# ---- what goes wrong -------------------------------------------------------------------------


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LOCKSTEP_COPIES", str(tmp_path))

    def missing(url: str, **_: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(StoreError, match="needs a package that is not installed") as caught:
        ArtifactStore("s3://bucket/prefix").read(NAME)
    assert "pip install 'torch-lockstep[s3]', on every node" in str(caught.value)
    assert "at   s3://bucket/prefix" in str(caught.value)


def test_a_protocol_that_is_none_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LOCKSTEP_COPIES", str(tmp_path))
    with pytest.raises(StoreError, match="no store speaks s33://"):
        ArtifactStore("s33://bucket/prefix").read(NAME)


class Mute:
    """A file system that never answers."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self.ended.wait(20)


def test_a_store_that_does_not_answer_is_left_aside_within_its_limit(url, monkeypatch, capsys):
    monkeypatch.setenv("LOCKSTEP_TIMING", "remote=0.3")
    monkeypatch.setattr("lockstep.fleet.objects.SAY_S", 0.1)
    mute = Mute()
    monkeypatch.setattr(Objects, "_fs", lambda self: mute)
    store = ArtifactStore(url, rank=2)
    assert store.read(NAME) is None
    told = capsys.readouterr().err
    assert f"rank 2 waits for {url} to list {NAME}" in told
    assert f"LS230: the store does not answer: it was to list {NAME}" in told
    assert f"at   {url}" in told and "got  nothing within 0.3 s" in told
    assert "LOCKSTEP_TIMING=remote=0.6 waits longer" in told
    assert store.read(NAME) is None and "LS230" not in capsys.readouterr().err  # told once
    assert store.write(NAME, b"bytes") is True  # this node has a copy
    told = capsys.readouterr().err
    assert f"could not keep {NAME}: this node alone keeps a copy" in told
    with pytest.raises(StoreError, match=r"does not answer: it was to take step\.lockstep"):
        store.write(NAME, b"bytes", required=True)
    with pytest.raises(StoreError, match="does not answer: it was to list it"):
        store.kept()
    mute.ended.set()


# ---- jobs ------------------------------------------------------------------------------------


def test_a_job_builds_into_it_and_the_next_one_loads(url, tmp_path, monkeypatch) -> None:
    fleet = Fleet(None, 0, 1, "run/0")
    for node, role in enumerate(["built", "loaded"]):
        another_node(tmp_path, monkeypatch, node)
        got = fleet.obtain("step/v0", {}, NAME, ArtifactStore(url), lambda stage: b"bytes")
        assert (got.role, got.data, got.path) == (role, b"bytes", f"{url}/{NAME}")


def test_a_copy_that_is_damaged_is_fetched_again(url, capsys) -> None:
    store = ArtifactStore(url)
    store.write(NAME, b"sound")
    store.path_of(NAME).write_bytes(b"rotten")

    def verify(data: bytes) -> None:
        if data != b"sound":
            raise ArtifactError("changed bytes")

    got = Fleet(None, 0, 1, "run/0").obtain("step/v0", {}, NAME, store, fail, verify=verify)
    assert (got.role, got.data) == ("loaded", b"sound")
    told = capsys.readouterr().err
    assert f"warning: this node's copy of {NAME} is given up: changed bytes" in told
    store.write(NAME, b"rotten")  # as what the store has: told, and not for ever
    with pytest.raises(ArtifactError, match="changed bytes"):
        Fleet(None, 0, 1, "run/0").obtain("step/v0", {}, NAME, store, fail, verify=verify)
    mine = ArtifactStore(store.path)  # a directory is nobody's copy
    store.path_of(NAME).write_bytes(b"rotten")
    with pytest.raises(ArtifactError, match="changed bytes"):
        Fleet(None, 0, 1, "run/0").obtain("step/v0", {}, NAME, mine, fail, verify=verify)


def fail(stage: Any) -> bytes:
    raise AssertionError("nothing is to be built")


def test_a_step_is_built_into_it_and_loaded_and_audited_on_another_node(
    url, tmp_path, monkeypatch, capfd
) -> None:
    text = run(hidden, url, capfd)
    assert f"no program of hidden in {url} yet" in text
    assert "built by rank 0" in text and f" -> {url}/" in text
    another_node(tmp_path, monkeypatch)
    text = run(hidden, url, capfd)
    assert "loaded by" in text and SAID in text
    assert [path.suffix for path in (tmp_path / "copies of 1").glob("*/*.audited")] == [MARK]
    assert SAID not in run(hidden, url, capfd)


def test_a_directory_needs_no_fsspec() -> None:
    code = (
        "import sys, tempfile; from lockstep.fleet import ArtifactStore; "
        "store = ArtifactStore(tempfile.mkdtemp() + '/a'); "
        "assert store.write('a', b'b') and store.read('a') == b'b'; "
        "assert 'fsspec' not in sys.modules; ArtifactStore('memory://a'); "
        "assert 'fsspec' not in sys.modules; ArtifactStore('memory://a').read('a'); "
        "assert 'fsspec' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
