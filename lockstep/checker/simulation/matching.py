"""Where each element of a rank's tensor sits in the one-rank tensor, read off the values.

No layout needs declaring: fused, grouped and copied layouts are found like any other. Where values
repeat, a claimed shard or a chunk of one dimension is tried.
"""

from __future__ import annotations

import itertools

import torch

from lockstep.checker.simulation.compare import same
from lockstep.checker.world import World
from lockstep.spmd.types import Type

Map = list[torch.Tensor]  # a rank's tensor of positions in the flattened one-rank tensor


def index_map(
    world: World, locals_: list[torch.Tensor], whole: torch.Tensor, types: dict[str, Type]
) -> Map | None:
    """Locate the ranks' elements in the one-rank tensor; None where they are not all in it.

    Args:
        types: axis -> the type that was claimed; tried where values alone do not decide.
    """
    if any(local.dtype != whole.dtype for local in locals_):
        return None
    positions = torch.arange(whole.numel()).view(whole.shape)
    if all(local.shape == whole.shape and same(local, whole, 0.0) for local in locals_):
        return [positions for _ in locals_]
    by_value = _by_value(locals_, whole)
    if by_value is not None:
        return by_value
    for parts in _cuts(world, positions, types):
        if all(_holds(local, whole, part) for local, part in zip(locals_, parts, strict=True)):
            return parts
    return None


def _holds(local: torch.Tensor, whole: torch.Tensor, part: torch.Tensor) -> bool:
    return local.shape == part.shape and same(local, whole.flatten()[part], 0.0)


def _by_value(locals_: list[torch.Tensor], whole: torch.Tensor) -> Map | None:
    flat = whole.flatten()
    if not flat.is_floating_point() or not flat.numel() or flat.unique().numel() < flat.numel():
        return None
    order = flat.argsort()
    found = []
    for local in locals_:
        at = torch.searchsorted(flat[order], local.flatten()).clamp(max=flat.numel() - 1)
        places = order[at]
        if not torch.equal(flat[places], local.flatten()):
            return None
        found.append(places.view(local.shape))
    return found


def _cuts(world: World, positions: torch.Tensor, types: dict[str, Type]) -> list[Map]:
    """Cuts of a tensor into the ranks' parts: as claimed first, then by axes and dimensions."""
    claimed = {axis: kind.dim for axis, kind in types.items() if kind.dim is not None}
    ways = [claimed] if claimed else []
    others: list[dict[str, int]] = []
    dims: list[int | None] = [None, *range(positions.dim())]  # None: an axis does not cut it
    for chosen in itertools.product(dims, repeat=len(world.wide)):
        cut = zip(world.wide, chosen, strict=True)
        others.append({axis: dim for axis, dim in cut if dim is not None})
    ways += sorted(others, key=len)  # the fewest cuts that explain it
    return [parts for way in ways if (parts := _cut(world, positions, way)) is not None]


def _cut(world: World, positions: torch.Tensor, way: dict[str, int]) -> Map | None:
    found = []
    for trace in world.ranks:
        part = positions
        for axis in world.mesh:
            dim = way.get(axis)
            if dim is None:
                continue
            if dim >= part.dim() or part.shape[dim] % world.mesh[axis]:
                return None
            part = part.chunk(world.mesh[axis], dim)[trace.coordinate[axis]]
        found.append(part)
    return found
