"""Saving and loading by torch's distributed checkpoint: aside, whole or not at all, on any mesh."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager

from lockstep.trainer.config import Checkpoint
from lockstep.trainer.saved import Saved, draft_of, finish, sweep
from lockstep.trainer.state import copied

WAIT_S = 1800.0  # for the slowest rank's files

Tensors = dict[str, torch.Tensor]


class Checkpoints:
    """The checkpoints of one training. Made and used by all ranks alike.

    Args:
        folder: a folder that all ranks share.
        config: how many are kept, and whether they are written aside.
    """

    def __init__(self, folder: Path, config: Checkpoint) -> None:
        self.folder, self.config = folder, config
        self.last = -1  # the step of the newest one that was begun
        self._pending: tuple[Future[Any], int, dict[str, Any]] | None = None
        # Of its own: what is written aside talks while the training does.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=WAIT_S))
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder, 0)
        dist.barrier(self._group)

    def save(self, step: int, tensors: Tensors, told: dict[str, Any]) -> None:
        """Save, once the save before has ended. Collective.

        Args:
            tensors: as `state.saved` gives them; copied before this returns, where it writes aside.
            told: JSON, the same on every rank.
        """
        self.wait()
        draft = draft_of(self.folder, step)
        if self.config.write == "sync":
            dcp.save(tensors, checkpoint_id=draft, process_group=self._group)
            self._finish(step, told)
        else:
            future = dcp.async_save(
                tensors, checkpoint_id=draft, process_group=self._group, async_stager=_Copies()
            )
            self._pending = future, step, told  # type: ignore[assignment]
        self.last = step

    def poll(self) -> None:
        """Give a save that has ended its name."""
        if self._pending is not None and self._pending[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the save that is under way has ended, and give it its name.

        Raises:
            whatever failed while it was written, on every rank.
        """
        if self._pending is None:
            return
        (future, step, told), self._pending = self._pending, None
        future.result(timeout=WAIT_S)
        self._finish(step, told)

    def load(self, saved: Saved, tensors: Tensors) -> None:
        """Read a checkpoint into tensors, each rank its boxes. Collective."""
        dcp.load(tensors, checkpoint_id=saved.path, process_group=self._group)

    def _finish(self, step: int, told: dict[str, Any]) -> None:
        if dist.get_rank() == 0:
            finish(draft_of(self.folder, step), step, told)
            sweep(self.folder, self.config.keep)


class _Copies(AsyncStager):
    """Copies the tensors at once, marks included."""

    should_synchronize_after_execute = False

    def stage(self, state_dict: Tensors) -> Tensors:  # type: ignore[override]
        return copied(state_dict)

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        """Nothing is held."""
