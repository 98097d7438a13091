"""Who can write a file that is going to be executed: its owner, its mode, and its folders', as ssh.

A folder that another user can write lets that user put another file, or another folder, in the
place of one. So every folder up to the root counts, and every symbolic link on the way. A folder
with the sticky bit, such as /tmp, is let be: there nobody renames or deletes what is another's.
Access control lists are not looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import StoreError

OTHERS = 0o022  # may write: the group, and everybody
MOST_LINKS = 40  # as the kernel has it


def refuse_if_open(path: Path, what: str = "what this job would execute") -> None:
    """Refuse a path where another user could put something else in the place of its content.

    Args:
        path: a file or a folder; where it does not exist, the folders above it count.
        what: what it holds, for the message.

    Raises:
        StoreError: LS230, naming the first folder or file that is open, from the root on, and what
            to chmod or chown.
        OSError: a folder on the way can't be looked at.

    Example:
        >>> refuse_if_open(Path("/"))
    """
    for part, is_last in _on_the_way(path):
        try:
            info = part.lstat()
        except FileNotFoundError:
            return
        _judge(part, info, path, is_last, what)


def refuse_if_seen(path: Path, what: str) -> None:
    """Refuse a secret file that another user can read or write.

    Raises:
        StoreError: LS230, as `refuse_if_open`.
    """
    refuse_if_open(path, what)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise StoreError(
            f"another user can read {what}",
            where=str(path),
            got=f"mode {mode:04o}",
            want="mode 0600",
            fix=f"chmod 600 {path}",
        )


def _on_the_way(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield every folder and link that the kernel goes through to a path, and which is the last."""
    at, links = Path("/"), 0
    todo = list(reversed(Path(path).absolute().parts[1:]))
    yield at, not todo
    while todo:
        name = todo.pop()
        if name == "..":
            at = at.parent
            continue
        part = at / name
        links += part.is_symlink()
        if not part.is_symlink() or links > MOST_LINKS:  # in a circle: opening it fails
            at = part
            yield part, not todo
            continue
        yield part, False
        target = part.readlink()
        at = Path("/") if target.is_absolute() else at
        todo += [name for name in reversed(target.parts) if name != "/"]


def _judge(part: Path, info: os.stat_result, path: Path, is_last: bool, what: str) -> None:
    me, mode = os.geteuid(), stat.S_IMODE(info.st_mode)
    is_folder, is_link = stat.S_ISDIR(info.st_mode), stat.S_ISLNK(info.st_mode)
    owned, can_stick = info.st_uid in (me, 0), is_folder and not is_last
    held = is_link or not mode & OTHERS or (can_stick and bool(mode & stat.S_ISVTX))
    if owned and held:
        return
    ways = [] if owned else [f"chown {'-h ' if is_link else ''}{me} {part}"]
    ways += [] if held else [f"chmod go-w {part}"]
    fixes = [" && ".join(ways), "set LOCKSTEP_STORE to a directory of your own"]
    if owned and can_stick:
        fixes.insert(1, f"chmod +t {part}")
    found = f"mode {mode:04o}, owner {info.st_uid}"
    raise StoreError(
        f"another user can write {what}",
        where=str(path),
        got=found if is_last else f"{found}, of {part}",
        want=f"mode {0o700 if is_folder else 0o600:04o}, owner {me}"
        if is_last
        else f"written by its owner alone, owner {me} or 0",
        why=None if is_last else "who can write a folder can put another one below it",
        fix=fixes,
    )
