"""What goes into a simulated rank: the values of its inputs, and what is known of their layout."""

from __future__ import annotations

from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import Call
from lockstep.capture.doubles import promoted as promoted
from lockstep.capture.graph import StepGraph
from lockstep.capture.layout import local_of
from lockstep.capture.state import State
from lockstep.spmd.claims import Recording
from lockstep.spmd.types import Type


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
        found.append(local_of(value))
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
