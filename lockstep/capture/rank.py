"""The rank in a step: user code gets a number that each rank reads as it runs, never this rank's.

torch's own frames get the int, since its helpers ask for it and do not put it into the graph.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lockstep import _compat
from lockstep._compat_dtensor import sym_coordinate
from lockstep.capture.caches import emptied, refuse_cached
from lockstep.capture.coordinates import Coordinates, giving_out
from lockstep.capture.decisions import deciding
from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.indexing import Indexing
from lockstep.capture.origin import is_user_file, line_of, user_frame
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError
from lockstep.spmd.mesh import WORLD, axis_of


@contextlib.contextmanager
def reading_rank(mode: Any, coordinates: Coordinates) -> Iterator[None]:
    """Give user code on this thread the rank as numbers of the trace, while inside.

    Args:
        mode: the trace's fake mode.
        coordinates: the trace's numbers so far.

    Raises:
        CaptureError: Python decides by the rank; at its line.
    """
    reads = _Reads(coordinates)
    c10d = dist.distributed_c10d
    swaps: dict[FunctionType, Any] = {
        c10d.get_rank: reads.get_rank,
        c10d.get_group_rank: reads.get_group_rank,
        c10d.get_global_rank: reads.get_global_rank,
        c10d.get_process_group_ranks: reads.get_process_group_ranks,
        DeviceMesh.get_local_rank: reads.get_local_rank,  # type: ignore[dict-item]
        DeviceMesh.get_coordinate: reads.get_coordinate,  # type: ignore[dict-item]
        DeviceMesh.get_rank: reads.get_rank,  # type: ignore[dict-item]
        _compat.mesh_table(): reads.get_table,
        sym_coordinate(): reads.get_place,
        _compat.engine_run(): _indexing_backwards,
    }
    try:
        with swapped(swaps), _group_rank(reads), deciding(reads.coordinates, mode):
            with Indexing(), giving_out(reads.coordinates):
                yield
    finally:
        cached = emptied(reads.coordinates)
    refuse_cached(cached)


def _indexing_backwards(original: Any, args: Any, kwargs: Any) -> Any:
    """A Function's `backward` may index by the rank too: torch leaves its modes before it."""
    with Indexing():
        return original(*args, **kwargs)


class _Reads:
    """What takes the place of each function that tells the rank."""

    def __init__(self, coordinates: Coordinates) -> None:
        self.coordinates = coordinates

    def get_rank(self, original: Any, args: Any, kwargs: Any) -> Any:
        return self._along(caller_frame(), "dist.get_rank()", original, args, kwargs)

    def get_local_rank(self, original: Any, args: Any, kwargs: Any) -> Any:
        frame = caller_frame()
        if not _is_users(frame):
            return original(*args, **kwargs)
        mesh, dim = args[0], (*args[1:], *kwargs.values(), None)[0]
        original(*args, **kwargs)  # what is wrong with the arguments is its to say
        return self.place(mesh.get_group(dim), "mesh.get_local_rank()", frame)

    def get_coordinate(self, original: Any, args: Any, kwargs: Any) -> Any:
        frame = caller_frame()
        found = original(*args, **kwargs)
        if not _is_users(frame) or found is None:
            return found
        groups = [args[0].get_group(i) for i in range(args[0].ndim)]
        return type(found)(self.place(g, "mesh.get_coordinate()", frame) for g in groups)

    def get_place(self, original: Any, args: Any, kwargs: Any) -> Any:
        """What DTensor asks for: also from torch's own frames it is a number of the trace."""
        mesh, dim = (*args, *kwargs.values())[:2]
        return self.place(mesh.get_group(dim), "a DTensor's own place", user_frame(caller_frame()))

    def get_group_rank(self, original: Any, args: Any, kwargs: Any) -> Any:
        frame = caller_frame()
        if not _is_users(frame):
            return original(*args, **kwargs)
        group, rank = (*args, *kwargs.values())[:2]
        if group is None or group is dist.group.WORLD:
            return rank
        if self.coordinates.name_of(rank) != self._name(None):
            _refuse_read(frame, "dist.get_group_rank(), of another rank's place")
            return original(group, dist.get_rank())
        return self.place(group, "dist.get_group_rank()", frame)

    def get_global_rank(self, original: Any, args: Any, kwargs: Any) -> Any:
        frame = caller_frame()
        if not _is_users(frame):
            return original(*args, **kwargs)
        group, place = (*args, *kwargs.values())[:2]
        if group is None or group is dist.group.WORLD:
            return place
        if not isinstance(place, int):
            _refuse_read(frame, "dist.get_global_rank(), of a place that differs")
            return original(group, 0)
        original(*args, **kwargs)
        return self._member(group, place, frame)

    def get_process_group_ranks(self, original: Any, args: Any, kwargs: Any) -> Any:
        frame = caller_frame()
        ranks = original(*args, **kwargs)
        group = (*args, *kwargs.values())[0]
        if not _is_users(frame) or len(ranks) == dist.get_world_size():
            return ranks
        return [self._member(group, place, frame) for place in range(len(ranks))]

    def get_table(self, original: Any, args: Any, kwargs: Any) -> Any:
        """`mesh["tp"].mesh`: the ranks of a slice, of which each rank has another."""
        frame = caller_frame()
        mesh, ranks = args[0], original(*args, **kwargs)
        if not _is_users(frame) or ranks.numel() == dist.get_world_size():
            return ranks
        if mesh.ndim != 1:
            _refuse_read(frame, "the ranks of a slice of the mesh")
            return ranks
        members = [self._member(mesh.get_group(), i, frame) for i in range(ranks.numel())]
        return torch.tensor(members)  # at this place in the trace, as a tensor of the graph

    def _along(self, frame: Any, what: str, original: Any, args: Any, kwargs: Any) -> Any:
        """A rank in the group that is the last argument, else in the world."""
        here = original(*args, **kwargs)
        if not _is_users(frame) or here < 0:
            return here
        groups = [a for a in (*args, *kwargs.values()) if isinstance(a, dist.ProcessGroup)]
        return self.place(groups[0] if groups else None, what, frame)

    def place(self, group: Any, what: str, frame: FrameType | None) -> Any:
        """This rank's place in a group, as a number of the trace."""
        name = self._name(group)
        if name is None:
            _refuse_read(frame, f"{what}, in a group that is no mesh axis")
            return dist.get_rank(group)
        known, size = self.coordinates.known, dist.get_world_size(group)
        if name in known or (known and size == 1):  # of one rank, all axes are one
            return dist.get_rank(group)
        return self.coordinates.read(name, size, line_of(frame))

    def _member(self, group: Any, place: int, frame: FrameType | None) -> Any:
        """The global rank of a member of a group of which each rank has another."""
        name = self._name(group)
        if name is None:
            _refuse_read(frame, "the ranks of a group that is no mesh axis")
            return 0
        return self.coordinates.read(f"{name}@{place}", dist.get_world_size(), line_of(frame))

    def _name(self, group: Any) -> str | None:
        found = axis_of(group)
        if found is not None:
            return found.name
        return WORLD if group is None or group is dist.group.WORLD else None


@contextlib.contextmanager
def _group_rank(reads: _Reads) -> Iterator[None]:
    """`group.rank()` is a C method: the raw entry is put back, an unwrapped one would not bind."""
    raw = vars(dist.ProcessGroup)["rank"]
    original = dist.ProcessGroup.rank

    def rank(group: dist.ProcessGroup) -> Any:
        frame = sys._getframe(1)
        return reads.place(group, "group.rank()", frame) if _is_users(frame) else original(group)

    dist.ProcessGroup.rank = rank  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.ProcessGroup.rank = raw  # type: ignore[method-assign]


def _is_users(frame: FrameType | None) -> bool:
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _refuse_read(frame: FrameType | None, what: str) -> None:
    refuse(
        CaptureError(
            f"the step reads its rank: {what}",
            where=line_of(frame),
            why="the program of one rank would be shipped to all of them",
            fix=[
                "read it as dist.get_rank(), dist.get_rank(group) or mesh.get_local_rank(axis)",
                "do what depends on the rank outside the step",
                "pass a tensor that the caller made from the rank",
            ],
        )
    )
