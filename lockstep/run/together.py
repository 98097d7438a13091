"""What the ranks of a mesh agree on between steps, apart from what the steps communicate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lockstep.errors import FleetError
from lockstep.run.even_size import Declared, agreed
from lockstep.run.modes import ON, mode

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Together:
    """The ranks of a mesh; a gloo group of their own, made at the first use.

    Alone, or in a world that is not there, a rank agrees with itself.

    Args:
        mesh: None: all ranks.
        timeout_s: how long to wait for the others.
    """

    def __init__(self, mesh: DeviceMesh | None, timeout_s: float) -> None:
        self._mesh, self._timeout_s = mesh, timeout_s
        self._made: dist.ProcessGroup | None = None

    def guard(self, doing: str) -> Any:
        """A block whose error is told to all ranks, where the job has a fleet."""
        if self._alone() or mode() != ON:
            return contextlib.nullcontext()
        from lockstep.run.session import session

        return session().fleet.guard(doing)

    def declared(self, own: Declared | None) -> Declared | None:
        """What all ranks' first batches come to; raises on every rank where they do not fit."""
        if self._alone():
            return agreed([own])
        found: list[Any] = [None] * dist.get_world_size(self._group())
        with self.guard("agreeing on the form of batches"), self._waiting("its first batch"):
            dist.all_gather_object(found, own, group=self._group())
        return agreed(found)

    def anyone(self, mine: bool, step: int) -> Callable[[], bool]:
        """Ask whether any rank says yes; returns at once what waits for the answer."""
        if self._alone():
            return lambda: mine
        flag = torch.tensor([int(mine)], dtype=torch.int32)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group(), async_op=True)

        def answer() -> bool:
            about = f"batch {step}"
            with self.guard(f"waiting for all ranks at {about}"), self._waiting(about):
                work.wait()
            return bool(flag.item())

        return answer

    def same(self, number: int) -> bool:
        """Whether all ranks bring the same number; each waits for all others."""
        if self._alone():
            return True
        ends = torch.tensor([number, -number])
        dist.all_reduce(ends, dist.ReduceOp.MAX, group=self._group())
        most, least = ends.tolist()
        return bool(most == -least)

    def _alone(self) -> bool:
        if not dist.is_initialized() or dist.get_backend() == "fake":
            return True
        ranks = None if self._mesh is None else self._mesh.mesh.numel()
        return (ranks or dist.get_world_size()) == 1

    def _group(self) -> dist.ProcessGroup:
        if self._made is None:
            ranks = None if self._mesh is None else self._mesh.mesh.flatten().tolist()
            limit = timedelta(seconds=self._timeout_s)
            some = ranks is not None and len(ranks) < dist.get_world_size()
            self._made = dist.new_group(
                sorted(ranks) if ranks is not None and some else None,
                timeout=limit,
                backend="gloo",
                use_local_synchronization=some,
            )
        return self._made

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "timed out" not in str(error).lower() and "timeout" not in str(error).lower():
                raise  # a rank that has gone: its own error is told
            raise FleetError(
                f"not all ranks came to {what} of ls.even_batches within {self._timeout_s:g} s",
                why="every rank must iterate, and as often as the others",
                fix="leave the loop on all ranks at the same batch; see what the missing ranks do",
            ) from None
