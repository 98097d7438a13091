"""What goes into a simulated rank: the values of its inputs, and what is known of their layout."""

from __future__ import annotations

from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import Call
from lockstep.capture.graph import StepGraph
from lockstep.capture.state import State
from lockstep.spmd.claims import Recording
from lockstep.spmd.signature import types_of
from lockstep.spmd.types import I, R, S, Type, V


def promoted(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a check computes: float64 for every floating one."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def input_tensors(graph: StepGraph, call: Call, state: State) -> list[torch.Tensor]:
    """The tensors behind a graph's inputs, in order; a Python float as a tensor of its own."""
    held = {slot.name: slot.tensor for slot in state.slots}
    given = dict(zip(call.names, call.leaves, strict=True))
    scalars = {scalar.name: scalar.get() for scalar in state.scalars}
    found = []
    for spec in graph.inputs:
        value: Any
        if spec.kind == "grad":
            value = held[spec.name.removesuffix(".grad")].grad
        elif spec.kind == "arg":
            value = given[spec.name]
        elif spec.kind == "float":
            value = scalars[spec.name] if spec.name in scalars else given[spec.name]
        else:
            value = held[spec.name]
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(float(value), dtype=torch.float64)
        found.append(value)
    return found


def input_values(graph: StepGraph, call: Call, state: State) -> list[torch.Tensor]:
    """Copies of the inputs' values, in the dtypes of a check; a fake has none, and stays."""
    return [
        tensor if _compat.is_fake(tensor) else tensor.detach().clone().to(promoted(tensor.dtype))
        for tensor in input_tensors(graph, call, state)
    ]


def said_of(
    said: Recording, graph: StepGraph, call: Call, state: State
) -> dict[str, dict[str, Type]]:
    """What was claimed of the inputs while they were built: placeholder name -> axis -> type."""
    nodes = graph.gm.graph.find_nodes(op="placeholder")
    by_id = {
        id(tensor): node.name
        for tensor, node in zip(input_tensors(graph, call, state), nodes, strict=True)
    }
    claims: dict[str, dict[str, Type]] = {}
    for claim in said.claims:
        name = by_id.get(id(claim.tensor))
        if name is not None:
            claims.setdefault(name, {}).update(claim.types)
    return claims


def marks_of(state: State, mesh: Any) -> dict[str, dict[str, Type]]:
    """What parameters' attributes say: Megatron's, on the axis "tp", and `type_parameters`'."""
    wide = mesh.mesh_dim_names or ()
    found: dict[str, dict[str, Type]] = {}
    for slot in state.parameters:
        types = _megatron(slot.tensor) if "tp" in wide else {}
        types |= {axis: kind for axis, kind in types_of(slot.tensor).items() if axis in wide}
        if types:
            found[slot.name] = types
    return found


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
