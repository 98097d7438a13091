"""What a typed collective does to its tensor, forward or backward.

Each is linear in its tensor and reads no rank: what depends on the coordinate is an operator of
`lockstep.spmd.ops`. An action that communicates is started and finished apart, through one of two
modules of the same functions: `collectives`, which a graph holds, or `direct`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch

from lockstep.spmd import collectives, direct, ops
from lockstep.spmd.claims import phase_now as now
from lockstep.spmd.mesh import _axes

Shape = Sequence[int]
Via = ModuleType
_PLAIN = (torch.Tensor, torch.nn.Parameter)
is_compiling = torch.compiler.is_compiling


def unwatched(x: torch.Tensor) -> bool:
    """Whether nothing captures, compiles or follows what is done to a tensor."""
    return type(x) in _PLAIN and now.get() == "run" and not is_compiling()


class Action:
    """One action; `started` is what `start` gave, `shape` that of the tensor it was given."""

    communicates = True

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        """Start what communicates."""
        raise NotImplementedError

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        """Wait, and give the result its form."""
        return via.wait(started)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        """Do all of it."""
        if type(x) in _PLAIN and now.get() == "run" and not is_compiling():  # as `unwatched`
            return self.now(x)
        return self.finish(self.start(x), x.shape)

    def now(self, x: torch.Tensor) -> torch.Tensor:
        """Do all of it at once. The commonest are written out: after a wait, with cold caches,
        each call deeper costs some microseconds."""
        return self.finish(self.start(x, direct), x.shape, direct)


class Local(Action):
    """An action that does not communicate: `run` is all of it."""

    communicates = False

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        return self.run(x)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        return started


@dataclass(frozen=True, slots=True)
class Nothing(Local):
    """The tensor itself."""

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)


@dataclass(frozen=True, slots=True)
class Slice(Local):
    """This rank's slice of a dimension."""

    axis: str
    dim: int
    sizes: tuple[int, ...]

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return _run(ops.own_slice, x, self.dim, self.sizes, self.axis)


@dataclass(frozen=True, slots=True)
class Pad(Local):
    """This rank's slice in its place, zeros elsewhere."""

    axis: str
    dim: int
    sizes: tuple[int, ...]

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return _run(ops.own_pad, x, self.dim, self.sizes, self.axis)


@dataclass(frozen=True, slots=True)
class Keep(Local):
    """The tensor on one rank, zeros on the others."""

    axis: str
    root: int

    def run(self, x: torch.Tensor) -> torch.Tensor:
        return _run(ops.keep_on, x, self.root, self.axis)


@dataclass(frozen=True, slots=True)
class Mean(Action):
    """Another action, then a division by the number of ranks.

    An average is never left to the back end: gloo has none, and others round it in ways of theirs.
    """

    inner: Action
    size: int

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        return self.inner.start(x, via)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        return self.inner.finish(started, shape, via) / self.size

    def now(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner.now(x) / self.size


@dataclass(frozen=True, slots=True)
class Reduce(Action):
    """All-reduce."""

    axis: str
    op: str = "sum"

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        return via.all_reduce(x, self.op, self.axis)

    def now(self, x: torch.Tensor) -> torch.Tensor:
        out = x.clone(memory_format=torch.contiguous_format)
        _axes[self.axis].group.allreduce([out], direct.OPTIONS[self.op]).wait()
        return out


@dataclass(frozen=True, slots=True)
class ReduceTo(Action):
    """A sum that one rank keeps, zeros on the others."""

    axis: str
    root: int

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        return via.all_reduce(x, "sum", self.axis)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        return _run(ops.keep_on, via.wait(started), self.root, self.axis)


@dataclass(frozen=True, slots=True)
class Broadcast(Action):
    """The tensor of one rank, on all."""

    axis: str
    root: int

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        return via.broadcast(x, self.root, self.axis)

    def now(self, x: torch.Tensor) -> torch.Tensor:
        return direct.broadcast(x, self.root, self.axis)


@dataclass(frozen=True, slots=True)
class Gather(Action):
    """All ranks' slices of a dimension, side by side. Uneven ones travel padded to the largest."""

    axis: str
    dim: int
    sizes: tuple[int, ...]

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        x = _padded(x, self.dim, self.sizes)
        return via.all_gather(x, len(self.sizes), self.axis)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        return _side_by_side(via.wait(started), shape, self.dim, self.sizes)


@dataclass(frozen=True, slots=True)
class ReduceScatter(Action):
    """The sum's own slice of a dimension."""

    axis: str
    dim: int
    sizes: tuple[int, ...]

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        if self.dim > 0 or not _even(self.sizes):
            x = torch.cat([_padded(p, self.dim, self.sizes) for p in _cut(x, self.dim, self.sizes)])
        return via.reduce_scatter(x, "sum", len(self.sizes), self.axis)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        return _trimmed(via.wait(started), self.dim, self.sizes, self.axis)


@dataclass(frozen=True, slots=True)
class Reshard(Action):
    """All-to-all: from shards of dimension `src` to shards of dimension `dst`."""

    axis: str
    src: int
    dst: int
    src_sizes: tuple[int, ...]
    dst_sizes: tuple[int, ...]

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        x = _padded(x, self.src, self.src_sizes)
        if self.dst > 0 or not _even(self.dst_sizes):
            pieces = _cut(x, self.dst, self.dst_sizes)
            x = torch.cat([_padded(piece, self.dst, self.dst_sizes) for piece in pieces])
        rows = [x.shape[0] // len(self.dst_sizes)] * len(self.dst_sizes)
        return via.all_to_all(x, rows, rows, self.axis)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        piece = list(shape)
        piece[self.dst] = max(self.dst_sizes)
        whole = _side_by_side(via.wait(started), piece, self.src, self.src_sizes)
        return _trimmed(whole, self.dst, self.dst_sizes, self.axis)


@dataclass(frozen=True, slots=True)
class Exchange(Action):
    """All-to-all by numbers of rows of a dimension: what goes to, and comes from, each rank."""

    axis: str
    dim: int
    out_splits: tuple[int, ...]
    in_splits: tuple[int, ...]

    def start(self, x: torch.Tensor, via: Via = collectives) -> torch.Tensor:
        rows = x.movedim(self.dim, 0) if self.dim else x
        splits = list(self.out_splits), list(self.in_splits)
        return via.all_to_all(rows, *splits, self.axis)

    def finish(self, started: torch.Tensor, shape: Shape, via: Via = collectives) -> torch.Tensor:
        rows = via.wait(started)
        return rows.movedim(0, self.dim).contiguous() if self.dim else rows


def _run(function: object, x: torch.Tensor, *args: object) -> torch.Tensor:
    """Call an operator's function at once where nothing watches: the dispatcher costs as much."""
    if unwatched(x):
        return function(x, *args)  # type: ignore[operator]
    return ops.OPERATORS[function](x, *args)  # type: ignore[index]


def _even(sizes: tuple[int, ...]) -> bool:
    return sizes.count(sizes[0]) == len(sizes)


def _cut(x: torch.Tensor, dim: int, sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return x.split_with_sizes(sizes, dim)


def _padded(x: torch.Tensor, dim: int, sizes: tuple[int, ...]) -> torch.Tensor:
    if _even(sizes):
        return x
    rest = list(x.shape)
    rest[dim] = max(sizes) - x.shape[dim]
    return torch.cat([x, x.new_zeros(rest)], dim)


def _trimmed(x: torch.Tensor, dim: int, sizes: tuple[int, ...], axis: str) -> torch.Tensor:
    return x if _even(sizes) else _run(ops.own_trim, x, dim, sizes, axis)


def _side_by_side(
    whole: torch.Tensor, shape: Shape, dim: int, sizes: tuple[int, ...]
) -> torch.Tensor:
    """Join what came stacked along dimension 0 along `dim` instead, without the padding."""
    even = _even(sizes)
    if even and dim == 0:
        return whole
    piece = list(shape)
    piece[dim] = max(sizes)
    pieces = whole.view(len(sizes), *piece).unbind(0)
    if even:
        return torch.cat(pieces, dim)
    return torch.cat([p.narrow(dim, 0, n) for p, n in zip(pieces, sizes, strict=True)], dim)
