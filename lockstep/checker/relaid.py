"""Gradients that are DTensors of another layout than their parameter: partial, or whole of a shard.

Whatever reads such a gradient, as an optimizer or a norm, first brings it to the layout it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lockstep.capture.graph import StepGraph
from lockstep.capture.layout import Layout, read_layout

Layouts = Mapping[str, tuple[Layout, Layout]]


def relaid_grads(graph: StepGraph) -> dict[str, tuple[Layout, Layout]]:
    """Parameter -> the layout of its gradient and its own, where the two differ."""
    own = {s.name: s.layout for s in graph.inputs if s.kind == "param"}
    held = [(s.name.removesuffix(".grad"), s.layout) for s in graph.inputs if s.kind == "grad"]
    held += [(e.name, e.layout) for e in graph.effects if e.kind == "grad"]
    found: dict[str, tuple[Layout, Layout]] = {}
    for name, record in held:
        mine = own.get(name)
        if record is not None and mine is not None:
            pair = read_layout(record), read_layout(mine)
            if pair[0].axes == pair[1].axes and pair[0].placements != pair[1].placements:
                found[name] = pair
    return found


def relaid_on(graph: StepGraph, axis: str) -> set[str]:
    """The parameters whose gradient lies otherwise than they do along an axis."""
    found = set()
    for name, (grad, own) in relaid_grads(graph).items():
        if axis in own.axes:
            at = own.axes.index(axis)
            if grad.placements[at] != own.placements[at]:
                found.add(name)
    return found


def relaid(world: Any, held: list[torch.Tensor], grad: Layout, own: Layout) -> list[torch.Tensor]:
    """Gradients of all ranks as their parameter lies: partial ones added up, whole ones cut."""
    for at, axis in enumerate(own.axes):
        if axis not in world.mesh or grad.placements[at] == own.placements[at]:
            continue
        size = world.mesh[axis]
        if grad.placements[at].startswith("P"):
            groups = [world.group(rank, axis) for rank in range(len(held))]
            held = [torch.stack([held[r] for r in group]).sum(0) for group in groups]
            if grad.placements[at] == "P(avg)":
                held = [value / size for value in held]
        if own.placements[at].startswith("S") and not grad.placements[at].startswith("S"):
            dim = int(own.placements[at][2:-1])
            places = [rank.coordinate[axis] for rank in world.ranks]
            cut = zip(held, places, strict=True)
            held = [value.chunk(size, dim)[place] for value, place in cut]
    return held
