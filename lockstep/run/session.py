"""This process' part in the job: its fleet, its store of artifacts, its journal. Made once."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from lockstep import _compat
from lockstep.errors import UsageError
from lockstep.fleet.fleet import Fleet
from lockstep.fleet.hooks import install_hooks
from lockstep.fleet.store import ArtifactStore, named_store
from lockstep.journal import Journal
from lockstep.run.modes import mode
from lockstep.spmd.mesh import default_device_type, start_process_group
from lockstep.spmd.start import meet


class Here(Protocol):
    """A place where a step is built: one rank of a job, or of one that is not there."""

    rank: int
    world: int
    journal: Journal

    def say(self, text: str) -> None:
        """Print a line for the user, from this rank."""


@dataclass
class Session:
    """What all compiled steps of a process share.

    `folder` is the run's folder, which holds one journal a rank; its name is rank 0's choice.
    """

    rank: int
    world: int
    fleet: Fleet
    journal: Journal
    folder: Path

    def store(self, url: str | os.PathLike[str] | None) -> ArtifactStore:
        """The store at a path or URL; by default `$LOCKSTEP_STORE`, else `~/.cache/lockstep`."""
        return ArtifactStore(named_store(url), rank=self.rank, journal=self.journal)

    def say(self, text: str) -> None:
        """Print a line for the user, from this rank."""
        from lockstep.fleet.say import say

        say(self.rank, text)


_session: Session | None = None


def session() -> Session:
    """The process' session, begun at the first call. Collective at that call: all ranks make it.

    Raises:
        UsageError: LS001, the job's process group was destroyed since.
    """
    global _session
    if _session is None:
        _session = _begin()
    elif not dist.is_initialized():
        _go_on(_session)
    return _session


def _go_on(here: Session) -> None:
    """A process alone gets a group again; one of a job cannot: its programs hold the old groups."""
    if here.world > 1:
        raise UsageError(
            "the process group was destroyed, and a compiled step was called after it",
            got="no process group",
            want=f"the one of {here.world} ranks that the first call ran in",
            fix="call dist.destroy_process_group() after the last step",
        )
    start_process_group(default_device_type())


def _begin() -> Session:
    start_process_group(default_device_type())
    rank, world = dist.get_rank(), dist.get_world_size()
    local, local_world = _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", world)
    store = _compat.default_store() if world > 1 else None
    journal, folder, word = open_journal(store)
    fleet = Fleet(
        store,
        rank,
        world,
        word,
        node=_number("GROUP_RANK", rank // max(local_world, 1)),
        local_rank=local,
        nodes=-(-world // max(local_world, 1)),
        journal=journal,
    )
    install_hooks(fleet)
    atexit.register(journal.event, "left")
    atexit.register(fleet.close)
    journal.event("start", pid=os.getpid(), node=fleet.node, **how_started(rank))
    return Session(rank, world, fleet, journal, folder)


def how_started(rank: int) -> dict[str, Any]:
    """What it takes to start the same job again; rank 0 tells it for all."""
    if rank != 0:
        return {}
    told = {k: v for k, v in sorted(os.environ.items()) if k.startswith("LOCKSTEP")}
    launched = {"nproc": _number("LOCAL_WORLD_SIZE", 1)} if "LOCAL_WORLD_SIZE" in os.environ else {}
    told.pop("LOCKSTEP_RUNS", None)
    return {"argv": sys.orig_argv, "environment": told, **launched}


_journal: Journal | None = None


def journal_here() -> Journal | None:
    """This process' journal; None before the first call of a step."""
    return _journal


def open_journal(store: dist.Store | None) -> tuple[Journal, Path, str]:
    """This rank's journal, the run's folder that holds it, and the word of this start.

    Collective over all ranks.

    Args:
        store: the job's rendezvous store, through which the ranks agree on the word.
    """
    global _journal
    rank, device = dist.get_rank(), default_device_type()
    word = meet(store or dist.HashStore(), rank, dist.get_world_size() if store else 1)
    folder = _folder(word.rpartition("-")[0], rank)
    _journal = Journal(
        _journal_path(folder, rank),
        rank,
        world=dist.get_world_size(),
        torch=str(torch.__version__),
        device=device,
        devices=torch.accelerator.device_count() if device != "cpu" else os.cpu_count(),
        index=torch.accelerator.current_device_index() if device != "cpu" else None,
        flag=torch.compiler.config.compile_on_one_rank,
        mode=mode(),
    )
    return _journal, folder, word


def _journal_path(folder: Path, rank: int) -> Path | None:
    """Where this rank's journal is; None, and told, where nothing can be written there."""
    path = folder / f"rank-{rank:05d}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path
    except OSError as error:
        from lockstep.fleet.say import say

        say(rank, f"warning: no journal of this run: {error}; LOCKSTEP_RUNS names another folder")
        return None


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def _folder(name: str, rank: int) -> Path:
    """`$LOCKSTEP_RUNS/<start>`, by default below `./runs`; "latest" links to it."""
    root = Path(os.environ.get("LOCKSTEP_RUNS", "runs"))
    if rank == 0:
        with contextlib.suppress(OSError):  # told by the journal that can't be made below it
            (root / name).mkdir(parents=True, exist_ok=True)
            link = root / f".latest-{os.getpid()}"
            link.unlink(missing_ok=True)
            link.symlink_to(name)
            link.replace(root / "latest")
    return root / name
