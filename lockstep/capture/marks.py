"""What is said of parameters on the parameters themselves: Megatron's attributes, DTensor's
placements, and ours."""

from __future__ import annotations

from typing import Any

import torch

from lockstep.capture.layout import layout_of, types_of_layout
from lockstep.capture.state import State
from lockstep.spmd.signature import types_of
from lockstep.spmd.types import I, R, S, Type, V


def marks_of(state: State, mesh: Any) -> dict[str, dict[str, Type]]:
    """What parameters say: Megatron's attributes, on the axis "tp", a DTensor's placements, and
    `type_parameters`'."""
    wide = mesh.mesh_dim_names or ()
    found: dict[str, dict[str, Type]] = {}
    for slot in state.parameters:
        types = _megatron(slot.tensor) if "tp" in wide else {}
        layout = layout_of(slot.name, slot.tensor)
        types |= types_of_layout(layout) if layout is not None else {}
        types |= {axis: kind for axis, kind in types_of(slot.tensor).items() if axis in wide}
        if types:
            found[slot.name] = types
    return found


def said_of_parameters(state: State, mesh: Any) -> dict[str, dict[str, str]]:
    """The same in words, parameter by parameter; nothing without a mesh."""
    if mesh is None:
        return {}
    marks = marks_of(state, mesh)
    return {
        name: {axis: str(kind) for axis, kind in types.items()} for name, types in marks.items()
    }


def _megatron(tensor: torch.Tensor) -> dict[str, Type]:
    """Read Megatron's marks: a parameter that carries one is a shard, or a copy on each rank."""
    if getattr(tensor, "tensor_model_parallel", False):
        dim = int(getattr(tensor, "partition_dim", -1))
        whole_piece = getattr(tensor, "partition_stride", 1) == 1  # else every n-th of many pieces
        return {"tp": S(dim) if dim >= 0 and whole_piece else V}
    if getattr(tensor, "sequence_parallel", False):
        return {"tp": R}  # it is read with other tokens on each rank: its gradients are to be added
    marked = hasattr(tensor, "tensor_model_parallel") or hasattr(tensor, "sequence_parallel")
    return {"tp": I} if marked else {}
