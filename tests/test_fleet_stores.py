"""Artifact stores: whole files, the owner's alone; a job goes on where one takes nothing."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from lockstep.errors import StoreError
from lockstep.fleet import ArtifactStore
from lockstep.fleet import stores as module


def test_a_directory_is_made_for_the_owner_alone(tmp_path):
    store = ArtifactStore(tmp_path / "deep" / "store")
    assert store.read("a.lockstep") is None
    assert store.write("a.lockstep", b"one") is True
    assert store.write("a.lockstep", b"two") is True
    assert store.read("a.lockstep") == b"two"
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    assert stat.S_IMODE((store.path / "a.lockstep").stat().st_mode) == 0o600
    assert [path.name for path in store.path.iterdir()] == ["a.lockstep"]


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".hidden", "a..b", "/etc/passwd"])
def test_a_name_cannot_leave_the_directory(tmp_path, name):
    with pytest.raises(StoreError, match="cannot name an artifact"):
        ArtifactStore(tmp_path).write(name, b"")


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_directory_that_others_can_write_is_refused(tmp_path, mode):
    tmp_path.chmod(0o700)
    store = ArtifactStore(tmp_path)
    assert store.write("a.lockstep", b"mine")
    tmp_path.chmod(mode)
    for action in (lambda: store.read("a.lockstep"), lambda: store.write("a.lockstep", b"")):
        with pytest.raises(StoreError) as caught:
            action()
        assert f"got  mode {mode:04o}" in str(caught.value)
        assert f"fix  chmod go-w {tmp_path}" in str(caught.value)
    tmp_path.chmod(0o755)  # others may read
    assert store.read("a.lockstep") == b"mine"


def test_a_file_that_others_can_write_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "a.lockstep").write_bytes(b"theirs")
    (tmp_path / "a.lockstep").chmod(0o666)
    with pytest.raises(StoreError, match="another user can write what this job would execute"):
        ArtifactStore(tmp_path).read("a.lockstep")


def test_a_pinned_file_is_read_for_any_name_and_never_written(tmp_path):
    file = tmp_path / "step.lockstep"
    file.write_bytes(b"pinned")
    file.chmod(0o600)
    store = ArtifactStore(file)
    assert store.pinned and store.read("anything.lockstep") == b"pinned"
    with pytest.raises(StoreError, match="a pinned artifact is never written"):
        store.write("anything.lockstep", b"other")
    assert file.read_bytes() == b"pinned"


def test_a_pinned_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(StoreError) as caught:
        ArtifactStore(tmp_path / "gone.lockstep").read("x.lockstep")
    assert f"at   {tmp_path}/gone.lockstep" in str(caught.value)
    assert "lockstep build -o" in str(caught.value)


def test_a_store_that_takes_nothing_is_said_and_the_job_goes_on(tmp_path, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lockstep.fleet.stores.write_whole", full)
    store = ArtifactStore(tmp_path / "store", rank=3)
    assert store.write("a.lockstep", b"data") is False
    told = capsys.readouterr().err
    assert told.startswith("[lockstep rank 3] warning: could not keep a.lockstep: No space left")
    assert "this job goes on from memory, the next start builds again" in told
    with pytest.raises(StoreError, match=r"the store cannot keep a\.lockstep"):
        store.write("a.lockstep", b"data", required=True)


def test_a_store_below_a_file_cannot_be_read(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="Not a directory"):
        ArtifactStore(tmp_path / "file" / "store").read("a.lockstep")


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, capsys):
    tmp_path.chmod(0o700)
    store = ArtifactStore(tmp_path)
    assert store.write("a.lockstep", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    assert store.write("a.lockstep", b"new") is False
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.lockstep"]
    assert store.read("a.lockstep") == b"old"


def test_old_temporary_files_are_swept_and_young_ones_are_not(tmp_path):
    tmp_path.chmod(0o700)
    old, young = tmp_path / ".a.host.1.tmp", tmp_path / ".a.host.2.tmp"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    ArtifactStore(tmp_path).write("b.lockstep", b"")
    assert not old.exists() and young.exists()


def test_a_file_that_is_too_large_is_refused(tmp_path):
    tmp_path.chmod(0o700)
    store = ArtifactStore(tmp_path, limit=4)
    store.write("a.lockstep", b"12345")
    with pytest.raises(StoreError, match="too large") as caught:
        store.read("a.lockstep")
    assert "got  5 bytes" in str(caught.value)
    store.write("a.lockstep", b"1234")
    assert store.read("a.lockstep") == b"1234"


def test_readers_never_see_half_a_file(tmp_path):
    """Two writers and a reader: every read is one writer's whole bytes."""
    tmp_path.chmod(0o700)
    store = ArtifactStore(tmp_path)
    whole = [bytes([letter]) * 200_000 for letter in b"ab"]
    store.write("a.lockstep", whole[0])
    children = []
    for data in whole:
        pid = os.fork()
        if pid == 0:
            for _ in range(20):
                store.write("a.lockstep", data)
            os._exit(0)
        children.append(pid)
    seen = set()
    while children:
        seen.add(Path(tmp_path / "a.lockstep").read_bytes())
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            assert status == 0
            children.remove(pid)
    assert seen <= set(whole) and len(seen) == 2


def test_a_store_that_can_never_be_written_is_an_error(monkeypatch, tmp_path):
    store = ArtifactStore(tmp_path / "store")

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("lockstep.fleet.stores.write_whole", refuse)
    with pytest.raises(StoreError, match="cannot keep a") as caught:
        store.write("a.lockstep", b"x")
    assert "Read-only file system" in str(caught.value)
    assert "set LOCKSTEP_STORE to another one" in str(caught.value)


@pytest.mark.parametrize("kind", ["pinned", "below a file"])
def test_a_store_that_takes_nothing_is_told_before_the_build(tmp_path, kind):
    file = tmp_path / "one.lockstep"
    file.write_bytes(b"pinned")
    store = ArtifactStore(file if kind == "pinned" else file / "store")
    told = "a pinned artifact is never written" if kind == "pinned" else "the store cannot keep"
    with pytest.raises(StoreError, match=told):
        store.prepare("step.lockstep")


def test_a_store_is_prepared_where_it_can_be_written(tmp_path):
    store = ArtifactStore(tmp_path / "new" / "store")
    store.prepare("step.lockstep")
    assert store.path.is_dir() and list(store.path.iterdir()) == []
