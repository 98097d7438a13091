"""Operators whose result depends on this rank's coordinate, which is read when they run.

A graph holds the operator with the axis' name, so that one program fits every rank. Import this
module to register them. None returns an alias of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from lockstep import _compat
from lockstep.errors import ContractError
from lockstep.spmd.mesh import WORLD
from lockstep.spmd.mesh import axis as axis_named

NAMESPACE = "lockstep"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def coordinate(axis: str) -> int:
    """Return this rank's place on an axis."""
    return axis_named(axis).group.rank()


def _read(_anchor: torch.Tensor, name: str, size: int) -> int:
    """What `COORDINATE` gives at run time: a place on an axis, or "tp@1": the rank at a place."""
    axis, _, place = name.partition("@")
    if place:
        here, ranks = axis_named(axis).ranks[int(place)], dist.get_world_size()
    elif axis == WORLD:  # needs no mesh
        here, ranks = dist.get_rank(), dist.get_world_size()
    else:
        here, ranks = coordinate(axis), axis_named(axis).size
    if ranks != size:
        raise ContractError(
            f"the program was built for {size} rank(s) along {axis}",
            got=f"{ranks} here",
            fix="build it again: delete the artifact, or unset LOCKSTEP_STORE",
        )
    return here


def own_slice(x: torch.Tensor, dim: int, sizes: Sequence[int], axis: str) -> torch.Tensor:
    """Cut this rank's slice out of a dimension; `sizes` says how much each coordinate gets."""
    here = coordinate(axis)
    return _fresh(x.narrow(dim, sum(sizes[:here]), sizes[here]))


def own_pad(x: torch.Tensor, dim: int, sizes: Sequence[int], axis: str) -> torch.Tensor:
    """Put this rank's slice in its place of the whole dimension, among zeros."""
    here = coordinate(axis)
    whole = x.new_zeros(_resized(x, dim, sum(sizes)))
    whole.narrow(dim, sum(sizes[:here]), sizes[here]).copy_(x)
    return whole


def own_trim(x: torch.Tensor, dim: int, sizes: Sequence[int], axis: str) -> torch.Tensor:
    """Cut what was padded to the largest slice down to the size of this rank's own."""
    return _fresh(x.narrow(dim, 0, sizes[coordinate(axis)]))


def keep_on(x: torch.Tensor, root: int, axis: str) -> torch.Tensor:
    """Copy the tensor on the rank at coordinate `root`; zeros elsewhere."""
    return x.clone() if coordinate(axis) == root else torch.zeros_like(x)


def _fresh(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _resized(x: torch.Tensor, dim: int, size: int) -> list[int]:
    shape = list(x.shape)
    shape[dim] = size
    return shape


def _own_part(x: torch.Tensor, dim: int, sizes: Sequence[int], axis: str) -> torch.Tensor:
    """The shape of one rank's part: of unknown size where the ranks' sizes differ."""
    even = all(size == sizes[0] for size in sizes)
    unknown = torch.library.get_ctx().new_dynamic_size
    size = sizes[0] if even else unknown(min=min(sizes), max=max(sizes))
    return x.new_empty(_resized(x, dim, size))


def _whole(x: torch.Tensor, dim: int, sizes: Sequence[int], axis: str) -> torch.Tensor:
    return x.new_empty(_resized(x, dim, sum(sizes)))


def _like(x: torch.Tensor, root: int, axis: str) -> torch.Tensor:
    return torch.empty_like(x)


def _define(run: Callable[..., Any], arguments: str, fake: Callable[..., Any]) -> Any:
    name = run.__name__
    _library.define(f"{name}(Tensor x, {arguments}, str axis) -> Tensor")
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


# A coordinate as a number of the graph, read by each rank as it runs; a compiler finds the device
# of the call in the empty tensor. Along an axis of one rank 1 is left possible, so that a step is
# refused in a world of one what it is refused in a larger one.
_library.define("coordinate(Tensor anchor, str name, int size) -> SymInt")
_library.impl("coordinate", _read, "CompositeExplicitAutograd")
torch.library.register_fake(
    f"{NAMESPACE}::coordinate",
    lambda _anchor, name, size: _compat.unknown_int(0, max(size, 2) - 1),
    lib=_library,
)
COORDINATE = getattr(torch.ops, NAMESPACE).coordinate.default

# What a graph holds in place of the function that does the work.
OPERATORS: dict[Callable[..., Any], Any] = {
    own_slice: _define(own_slice, "int dim, SymInt[] sizes", _own_part),
    own_pad: _define(own_pad, "int dim, SymInt[] sizes", _whole),
    own_trim: _define(own_trim, "int dim, SymInt[] sizes", _own_part),
    keep_on: _define(keep_on, "int root", _like),
}
