"""Folders and files that another user can write are refused, with what to chmod; as ssh does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.build.ownership import refuse_if_open
from lockstep.errors import StoreError
from lockstep.fleet import ArtifactStore

SOMEBODY = 12345


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of this user's alone, with `a/store` and `link` to it."""
    tmp_path.chmod(0o700)
    (tmp_path / "a" / "store").mkdir(parents=True)
    for folder in (tmp_path / "a", tmp_path / "a" / "store"):
        folder.chmod(0o700)
    (tmp_path / "link").symlink_to("a/store")
    return tmp_path


def owned_by(path: Path, user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a path to another user; where only root can, let it seem so."""
    if os.geteuid() == 0:
        os.chown(path, user, -1, follow_symlinks=False)
        return
    real = Path.lstat

    def lstat(self: Path) -> os.stat_result:
        info = real(self)
        if self != path:
            return info
        return os.stat_result([*info[:4], user, *info[5:10]])

    monkeypatch.setattr(Path, "lstat", lstat)


def refusal(path: Path) -> str:
    with pytest.raises(StoreError) as caught:
        refuse_if_open(path)
    return str(caught.value)


def test_a_folder_of_one_s_own_is_taken(root):
    refuse_if_open(root / "a" / "store")
    refuse_if_open(root / "link")
    refuse_if_open(root / "not" / "there")


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_above_that_others_can_write_is_refused(mode, root):
    (root / "a").chmod(mode)
    told = refusal(root / "a" / "store")
    assert told == (
        "LS230: another user can write what this job would execute\n"
        f"  at   {root}/a/store\n"
        f"  got  mode {mode:04o}, owner {os.geteuid()}, of {root}/a\n"
        f"  want written by its owner alone, owner {os.geteuid()} or 0\n"
        "  why  who can write a folder can put another one below it\n"
        f"  fix  chmod go-w {root}/a\n"
        f"  or   chmod +t {root}/a\n"
        "  or   set LOCKSTEP_STORE to a directory of your own"
    )
    (root / "a").chmod(mode | 0o1000)  # sticky: nobody renames what is another's
    refuse_if_open(root / "a" / "store")
    (root / "a").chmod(0o755)
    refuse_if_open(root / "a" / "store")


def test_the_folder_itself_may_not_be_written_though_it_is_sticky(root):
    (root / "a" / "store").chmod(0o1777)
    assert f"fix  chmod go-w {root}/a/store" in refusal(root / "a" / "store")
    assert f"{root}/link" in refusal(root / "link")


@pytest.mark.parametrize("part", ["a", "a/store"])
def test_another_s_folder_is_refused(part, root, monkeypatch):
    owned_by(root / part, SOMEBODY, monkeypatch)
    told = refusal(root / "a" / "store")
    assert f"owner {SOMEBODY}" in told
    assert f"fix  chown {os.geteuid()} {root}/{part}" in told


def test_another_s_link_is_refused_and_what_it_leads_through_counts(root, monkeypatch):
    refuse_if_open(root / "link")
    (root / "a").chmod(0o777)
    assert f"of {root}/a\n" in refusal(root / "link")
    (root / "a").chmod(0o700)
    owned_by(root / "link", SOMEBODY, monkeypatch)
    assert f"fix  chown -h {os.geteuid()} {root}/link" in refusal(root / "link")


def test_up_is_up_from_where_a_link_leads(root):
    """`link/..` is `a`, and not the folder that holds the link."""
    (root / "open").mkdir()
    (root / "open").chmod(0o777)
    (root / "open" / "inner").mkdir(mode=0o700)
    (root / "up").symlink_to(root / "open" / "inner")
    (root / "open" / "inner" / "store").mkdir(mode=0o700)
    assert f"of {root}/open\n" in refusal(root / "up" / ".." / "inner" / "store")


def test_links_in_a_circle_end(root):
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    refuse_if_open(root / "one")
    with pytest.raises(StoreError, match="cannot be read"):
        ArtifactStore(root / "one").read("a.lockstep")


@pytest.mark.parametrize("way", ["read", "write", "prepare"])
def test_a_store_below_such_a_folder_is_refused(way, root):
    (root / "a").chmod(0o777)
    store = ArtifactStore(root / "a" / "store")
    given = ("a.lockstep", b"") if way == "write" else ("a.lockstep",)
    with pytest.raises(StoreError, match=f"chmod go-w {root}/a\n"):
        getattr(store, way)(*given)
