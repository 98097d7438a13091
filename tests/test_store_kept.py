"""A store within a limit: the longest unused goes first, what a process runs stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.build.artifact import pack
from lockstep.build.program import Program
from lockstep.cli import main
from lockstep.errors import UsageError
from lockstep.fleet import ArtifactStore
from lockstep.fleet.kept import drop, kept_in, release_all, size_of
from tests.sources import ROOT

PROGRAM = Program("graph", "def call(inputs): ...\n", {}, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of a, b, c and d, each of 1000 bytes or so, unused for 40, 30, 20 and 10 s."""
    tmp_path.chmod(0o700)
    for number, name in enumerate("abcd"):
        path = tmp_path / f"{name}.lockstep"
        path.write_bytes(pack({"step": name}, PROGRAM).to_bytes())
        path.chmod(0o600)
        os.utime(path, (0, 1_000_000 + 10 * number))
    yield tmp_path
    release_all()


def names(folder: Path) -> str:
    return "".join(one.path.stem for one in kept_in(folder))


def size(folder: Path) -> int:
    return kept_in(folder)[0].size


def test_the_longest_unused_goes_first(folder):
    assert names(folder) == "abcd"
    dropped = drop(folder, 2 * size(folder))
    assert [one.path.stem for one in dropped.gone] == ["a", "b"]
    assert names(folder) == "cd" and dropped.left == 2 * size(folder)
    assert drop(folder, 2 * size(folder)).gone == ()


def test_what_is_read_is_used_now_and_stays_while_the_process_lives(folder):
    ArtifactStore(folder).read("a.lockstep")
    assert names(folder) == "bcda"
    assert [one.path.stem for one in kept_in(folder) if one.running] == ["a"]
    dropped = drop(folder, 0)
    assert names(folder) == "a" and [one.path.stem for one in dropped.stay] == ["a"]
    release_all()
    assert drop(folder, 0).left == 0 and names(folder) == ""


def test_another_process_holds_what_it_took_until_it_is_killed(folder):
    code = (
        "import sys; from lockstep.fleet.stores import ArtifactStore; "
        "ArtifactStore(sys.argv[1]).read('b.lockstep'); print('has it', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, folder], stdin=-1, stdout=-1, text=True, cwd=ROOT
    ) as other:
        assert other.stdout.readline() == "has it\n"
        drop(folder, 0)
        assert names(folder) == "b"
        other.kill()
    assert drop(folder, 0).left == 0


def test_a_write_drops_and_tells_it(folder, monkeypatch, capsys):
    data = (folder / "a.lockstep").read_bytes()
    monkeypatch.setenv("LOCKSTEP_STORE_LIMIT", str(3 * len(data)))
    assert ArtifactStore(folder).write("e.lockstep", data)
    assert names(folder) == "cde"
    assert "2 unused artifacts dropped" in capsys.readouterr().err
    monkeypatch.setenv("LOCKSTEP_STORE_LIMIT", "1")
    assert ArtifactStore(folder).write("f.lockstep", data)
    assert names(folder) == "ef"
    assert "in use, over LOCKSTEP_STORE_LIMIT" in capsys.readouterr().err


def test_a_limit_that_is_none_is_told_before_a_build(folder, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_STORE_LIMIT", "much")
    with pytest.raises(UsageError, match="'much' is no size"):
        ArtifactStore(folder).prepare("e.lockstep")


@pytest.mark.parametrize("text", ["", "GB", "-1", "1 XB", "1e3"])
def test_what_is_no_size(text):
    with pytest.raises(UsageError, match="is no size"):
        size_of(text)


def test_a_process_holds_no_more_files_than_it_may(folder, monkeypatch):
    monkeypatch.setattr("lockstep.fleet.kept.MOST_HELD", 2)
    for name in "abc":
        ArtifactStore(folder).read(f"{name}.lockstep")
    assert sorted(one.path.stem for one in kept_in(folder) if one.running) == ["b", "c"]


def test_the_verbs(folder, capsys):
    here = ["--store", str(folder)]
    ArtifactStore(folder).read("a.lockstep")
    assert main(["store", "ls", *here]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "b.lockstep  b, graph" in lines[0] and lines[3].endswith("a, graph  in use")
    assert lines[4].startswith("4 artifacts, ")
    assert main(["store", "verify", *here]) == 0
    assert "4 of 4 artifacts are sound" in capsys.readouterr().out
    assert main(["store", "gc", *here]) == 2
    assert "no limit is given" in capsys.readouterr().err
    assert main(["store", "gc", "--limit", "1KB", *here]) == 0
    assert names(folder) == "a"
    assert "dropped d.lockstep" in capsys.readouterr().out
    assert main(["store", "gc", "--limit", "1B", *here]) == 1
    assert "kept    a.lockstep" in capsys.readouterr().out
    (folder / "a.lockstep").write_bytes(b"torn")
    assert main(["store", "verify", *here]) == 1
    seen = capsys.readouterr()
    assert "LS210: cut short in the header" in seen.err and "0 of 1 artifacts" in seen.out
    assert main(["store", "ls", *here]) == 1
    assert main(["store", "ls", "--store", str(folder / "a.lockstep")]) == 2
