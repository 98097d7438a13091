"""How a model's parameters lie: one table, from patterns of names to a type along each mesh axis.

    {"*": {"dp": R}, "*.wq.weight": {"tp": S(0)}, "*.norm.weight": {"tp": I}}

What it says is kept on the parameters, where cutting, reducing, clipping, checking and saving read
it: R is a copy whose gradient is a term of a sum, I a copy whose gradient is whole, S(d) a shard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from lockstep.errors import UsageError
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.signature import type_parameters, types_of
from lockstep.spmd.types import Type

Table = Mapping[str, Mapping[str, Type]]
Numbers = tuple[int, ...]
ATTRIBUTE = "lockstep_box"  # on a parameter: shape, offsets and sizes as `Placed` has them


@dataclass(frozen=True)
class Placed:
    """Where a parameter lies in the whole one.

    Args:
        shape: of the whole parameter.
        offsets, sizes: the box of it that this rank holds. A rank whose box is smaller than its
            tensor holds zeros at the end of dimension 0.
        types: axis -> type.
    """

    shape: Numbers
    offsets: Numbers
    sizes: Numbers
    types: Mapping[str, Type]

    def held(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the part of a local tensor that the box says, without its padding: a view."""
        return parameter[: self.sizes[0]] if self.sizes else parameter


def place(model: nn.Module, table: Table) -> None:
    """Cut every parameter to this rank's part, as a table says; nothing communicates.

    Every rank holds the same whole model before. Where several patterns match, each adds its axes.

    Args:
        model: changed in place; a parameter that two modules share stays shared.
        table: pattern of names -> axis -> R, I or S(dim). Every parameter needs one.

    Raises:
        UsageError: a pattern that matches nothing, a parameter that none matches, or a dimension
            that an axis does not divide.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    left_out = [n for n in names if not any(fnmatchcase(n, pattern) for pattern in table)]
    if left_out:
        raise UsageError(
            "the table of placements leaves parameters out",
            got=", ".join(left_out[:5]),
            want="a pattern for each: R, I or S(dim) along every axis of the mesh",
        )
    type_parameters(model, table)
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        setattr(parameter, ATTRIBUTE, (shape, (0,) * len(shape), shape))
        for axis, kind in types_of(parameter).items():
            if kind.dim is not None:
                shard(parameter, name, axis, kind.dim)


def shard(parameter: nn.Parameter, name: str, axis: str, dim: int, pad: bool = False) -> None:
    """Cut a placed parameter to this rank's slice of a dimension, in place.

    Args:
        parameter: its data become a copy of the slice.
        name: for messages.
        axis: a mesh axis; the slices lie in the order of its ranks.
        dim: the dimension.
        pad: let the last slices be smaller, with zeros where they end; of dimension 0 alone.

    Raises:
        UsageError: the axis does not divide the dimension, and `pad` is not set.
    """
    over, (shape, offsets, sizes) = axis_named(axis), _box(parameter, name)
    extent, rank = sizes[dim], over.group.rank()
    if extent % over.size and not pad:
        raise UsageError(
            f"{axis} does not divide dimension {dim} of {name}",
            got=f"{extent} of shape {list(shape)} over {over.size} ranks",
            want=f"a multiple of {over.size}",
        )
    rows = math.ceil(extent / over.size)
    start = min(rank * rows, extent)
    size = min(rows, extent - start)
    part = parameter.detach().narrow(dim, start, size)
    held = part.new_zeros(_changed(tuple(part.shape), dim, rows))
    held.narrow(dim, 0, size).copy_(part)
    parameter.data = held
    at = _changed(offsets, dim, offsets[dim] + start)
    setattr(parameter, ATTRIBUTE, (shape, at, _changed(sizes, dim, size)))


def placements(model: nn.Module) -> dict[str, Placed]:
    """Return how each parameter of a placed model lies, by name; a shared one has one name.

    Raises:
        UsageError: nothing placed the model.
    """
    named = model.named_parameters()
    return {name: Placed(*_box(p, name), types_of(p)) for name, p in named}


def _box(parameter: torch.Tensor, name: str) -> tuple[Numbers, Numbers, Numbers]:
    box = getattr(parameter, ATTRIBUTE, None)
    if box is None:
        raise UsageError(
            f"{name} has no placement",
            want="a model that a plan made parallel",
            fix="llama_plan.parallelize(model, mesh), or parallel.place(model, table)",
        )
    return box


def _changed(numbers: Numbers, at: int, to: int) -> Numbers:
    return (*numbers[:at], to, *numbers[at + 1 :])
