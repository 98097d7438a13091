"""`lockstep store`: what a store keeps, how sound it is, and dropping what is no longer used."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lockstep.errors import LockstepError, UsageError

if TYPE_CHECKING:
    from lockstep.fleet.store import ArtifactStore

ACTION = tyro.conf.arg(metavar="ACTION")


def store(
    action: Annotated[tyro.conf.Positional[Literal["ls", "gc", "verify"]], ACTION],
    store: str = "",
    limit: str = "",
) -> int:
    """List, verify or shrink a store of artifacts; nothing in it is executed.

    Args:
        action: ls: what is kept, the longest unused first. verify: every byte of all of it. gc:
            drop the longest unused until the store is within the limit; what a job runs stays.
        store: the store's directory or URL; by default LOCKSTEP_STORE, else ~/.cache/lockstep.
        limit: of gc, as 20GB; by default LOCKSTEP_STORE_LIMIT.
    """
    from lockstep.fleet.store import ArtifactStore, local_path, named_store

    place = named_store(store)
    folder = local_path(place)
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder} is no directory", want="a store's directory, or its URL")
    return {"ls": _ls, "gc": _gc, "verify": _verify}[action](ArtifactStore(place), limit)


def _ls(store: ArtifactStore, _limit: str) -> int:
    from lockstep.build.describe import printable
    from lockstep.build.inspect import size_text

    kept, bad = store.kept(), 0
    for one in kept:
        try:
            manifest = one.manifest()
            step = f"{manifest.get('step', '?')}, {manifest.get('backend', '?')}"
        except LockstepError as error:
            step, bad = str(error.what), bad + 1
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used))
        running = "  in use" if one.running else ""
        print(printable(f"{used}  {size_text(one.size):>10}  {one.name}  {step}{running}"))
    print(f"{len(kept)} artifacts, {size_text(sum(one.size for one in kept))}: {store}")
    return 1 if bad else 0


def _verify(store: ArtifactStore, _limit: str) -> int:
    kept, bad = store.kept(), 0
    for one in kept:
        wrong = one.wrong()
        if wrong is not None:
            bad += 1
            print(wrong, file=sys.stderr)
    print(f"{len(kept) - bad} of {len(kept)} artifacts are sound: {store}")
    return 1 if bad else 0


def _gc(store: ArtifactStore, limit: str) -> int:
    from lockstep.build.inspect import size_text
    from lockstep.fleet.kept import LIMIT, limit_of_store, size_of

    most = size_of(limit) if limit else limit_of_store()
    if most is None:
        raise UsageError("no limit is given", want=f"--limit 20GB, or {LIMIT}")
    dropped = store.drop(most)
    for one in dropped.gone:
        print(f"dropped {one.name}, {size_text(one.size)}")
    for one in dropped.stay:
        print(f"kept    {one.name}, {size_text(one.size)}: in use")
    print(f"{size_text(dropped.left)} left: {store}")
    return 0 if dropped.left <= most else 1
