"""A DTensor at the edge of a program: its local tensor goes in and comes out, its layout is said.

The layout names mesh axes, so that it is the same on every rank; a mesh of this rank's own gives
the DTensor back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from lockstep._compat_dtensor import (
    dtensor_around,
    is_dtensor,
    is_dtensor_type,
    local_of,
    plain_order,
)
from lockstep.capture.origin import user_line
from lockstep.errors import CaptureError, ContractError
from lockstep.spmd.mesh import axis_of
from lockstep.spmd.types import I, P, S, Type

__all__ = ["Layout", "is_dtensor", "is_dtensor_type", "local_of"]
_WRITTEN = re.compile(r"(?:S\((\d+)\)|R|P\((\w+)\))")


@dataclass(frozen=True)
class Layout:
    """How a tensor is divided over a mesh: its axes, what each does with it, and the whole's form.

    Example:
        >>> Layout(("tp",), ("S(0)",), (8, 4), (4, 1)).text
        'S(0) on tp of [8, 4]'
    """

    axes: tuple[str, ...]
    placements: tuple[str, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def text(self) -> str:
        """The layout in words."""
        parts = zip(self.placements, self.axes, strict=True)
        return f"{', '.join(f'{p} on {a}' for p, a in parts)} of {list(self.shape)}"

    def record(self) -> dict[str, Any]:
        """As a JSON value."""
        return {key: list(value) for key, value in asdict(self).items()}

    def around(self, local: torch.Tensor, meshes: Mapping[tuple[str, ...], Any]) -> torch.Tensor:
        """The DTensor of a local tensor on this rank's own mesh with these axes.

        Raises:
            ContractError: there is none.
        """
        if self.axes not in meshes:
            raise ContractError(
                f"the program gives a DTensor over {', '.join(self.axes)}",
                got="no DTensor over these axes among the parameters here",
                fix="make the model over the mesh that the artifact was built with",
            )
        placements = [_placement(text) for text in self.placements]
        return dtensor_around(local, meshes[self.axes], placements, self.shape, self.stride)


def read_layout(record: Mapping[str, Any]) -> Layout:
    """The layout that a record was made of."""
    return Layout(*(tuple(record[key]) for key in ("axes", "placements", "shape", "stride")))


def layout_of(name: str, tensor: Any) -> Layout | None:
    """How a DTensor is divided; None for any other tensor.

    Args:
        name: what the user calls it.

    Raises:
        CaptureError: over what is no mesh axis, unevenly, or in a way that has no name here.
    """
    if not is_dtensor(tensor):
        return None
    mesh = tensor.device_mesh
    axes = [axis_of(mesh.get_group(dim)) for dim in range(mesh.ndim)]
    if None in axes:
        raise _refused(name, tensor, "a mesh whose axes have no names here",
                       "pass its mesh, with names: ls.compile(mesh=...)")  # fmt: skip
    placements = tensor.placements
    words = [_word(placement) for placement in placements]
    if None in words or not plain_order(tensor):
        raise _refused(name, tensor, f"the placements {placements}",
                       "Shard(dim), Replicate(), Partial(), in the order of the mesh")  # fmt: skip
    for dim, size in enumerate(tensor.shape):
        parts = 1
        for at, placement in enumerate(placements):
            parts *= mesh.size(at) if placement.is_shard(dim) else 1
        if size % parts:
            raise _refused(name, tensor, f"dimension {dim} of {size} in {parts} parts",
                           "a size that divides evenly: pad it to the next multiple")  # fmt: skip
    named = tuple(axis.name for axis in axes if axis is not None)
    found = tuple(word for word in words if word is not None)
    return Layout(named, found, tuple(tensor.shape), tuple(tensor.stride()))


def record_of(name: str, tensor: Any) -> dict[str, Any] | None:
    """The record of how a DTensor is divided, see `layout_of`; None for any other tensor."""
    layout = layout_of(name, tensor)
    return layout.record() if layout is not None else None


def meshes_of(tensors: Iterable[Any]) -> dict[tuple[str, ...], Any]:
    """The meshes of this rank's DTensors, by their axes."""
    found: dict[tuple[str, ...], Any] = {}
    for tensor in tensors:
        layout = layout_of("a parameter", tensor)
        if layout is not None:
            found.setdefault(layout.axes, tensor.device_mesh)
    return found


def types_of_layout(layout: Layout) -> dict[str, Type]:
    """What each axis' placement is as a type: a shard, the same on all ranks, or a partial."""
    return {
        axis: S(int(text[2:-1])) if text[0] == "S" else I if text == "R" else P
        for axis, text in zip(layout.axes, layout.placements, strict=True)
    }


def _word(placement: Any) -> str | None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Shard:
        return f"S({placement.dim})"
    if type(placement) is Replicate:
        return "R"
    return f"P({placement.reduce_op})" if type(placement) is Partial else None


def _placement(text: str) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard

    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise ContractError(f"{text!r} is no placement", want="S(dim), R or P(op)")
    if found[1] is not None:
        return Shard(int(found[1]))
    return Replicate() if found[2] is None else Partial(found[2])


def _refused(name: str, tensor: Any, got: str, want: str) -> CaptureError:
    return CaptureError(
        f"{name} is a DTensor that no program takes",
        where=user_line() or None,
        got=f"{got}; shape {list(tensor.shape)}",
        want=want,
        why="the same program is to fit every rank's part of it",
        fix="make the model without DTensors, and divide it by lockstep.parallel: docs/parallel.md",
    )
