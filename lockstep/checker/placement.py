"""How each input lies over the ranks: by claim, by mark, else as its values propose.

Equality of values never decides: a zero-initialised shard is equal on all ranks, and so is the same
batch given to all of them. What is left is told as undecided, with the line that declares it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lockstep import _compat
from lockstep.checker.finding import Finding
from lockstep.checker.simulation.compare import same, same_along
from lockstep.checker.world import World
from lockstep.spmd.types import Type, V


@dataclass
class Placement:
    """The layout of the inputs.

    Args:
        types: input name -> axis -> its type where it was said; axes of one rank are left out.
        tied: input name -> axes along which all ranks hold the same value, and must go on to.
        open: input name -> axes along which neither was said nor can be told.
        findings: claims that the values contradict.
        placed: constant inputs that `jitter` told apart by place; None before it ran.
    """

    types: dict[str, dict[str, Type]] = field(default_factory=dict)
    tied: dict[str, list[str]] = field(default_factory=dict)
    open: dict[str, list[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    placed: set[str] | None = None

    def undecided(self) -> list[str]:
        """One line for all inputs that are left open along the same axes, with the declaration."""
        lines = []
        for axes in dict.fromkeys(tuple(axes) for axes in self.open.values()):
            names = [name for name, held in self.open.items() if tuple(held) == axes]
            said = ", ".join(f"{axis}=..." for axis in axes)
            verb = "is" if len(names) == 1 else "are"
            lines.append(
                f"{few(names)} {verb} constant and equal on every rank of {', '.join(axes)}: whole "
                f"or a shard? declare it: ls.typed({names[0]}, {said})"
            )
        return lines


def few(names: list[str], most: int = 3) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def place(world: World) -> Placement:
    """Find out how the inputs of a world lie, before any value is jittered."""
    found = Placement()
    inputs = list(world.ranks[0].graph.gm.graph.find_nodes(op="placeholder"))
    for at, spec in enumerate(world.ranks[0].graph.inputs):
        if spec.kind in ("float", "grad"):
            continue
        first = world.ranks[0]
        said = {**first.marks.get(spec.name, {}), **first.claims.get(inputs[at].name, {})}
        values = [trace.inputs[at] for trace in world.ranks]
        found.types[spec.name] = {axis: said[axis] for axis in world.wide if axis in said}
        found.tied[spec.name] = []
        for axis in world.wide:
            _place_along(axis, spec.name, spec.kind, said.get(axis), values, world, found)
    return found


def _place_along(
    axis: str,
    name: str,
    kind: str,
    said: Type | None,
    values: list[torch.Tensor],
    world: World,
    found: Placement,
) -> None:
    equal = same_along(world, values, axis)
    if said is not None and said.kind in ("R", "I"):
        if not equal:
            found.findings.append(_contradiction(name, axis, said))
        found.tied[name].append(axis)
    elif said is None and equal:
        if kind == "param" and all(is_constant(value) for value in values):
            found.open.setdefault(name, []).append(axis)
        found.tied[name].append(axis)


def is_constant(value: torch.Tensor) -> bool:
    """Whether all elements are one number: such values say nothing of a layout."""
    return value.numel() < 2 or bool((value == value.flatten()[0]).all())


def _contradiction(name: str, axis: str, said: Type) -> Finding:
    return Finding(
        "LS534",
        f"{name} is claimed to be the same along {axis}, and its initial values differ",
        axis=axis,
        got=str(V),
        want=str(said),
        why="replicas that start apart stay apart: no gradient brings them together",
        fix=f"initialise it from the same seed on every rank of {axis}, or broadcast it",
        witness="gold",
    )


def jitter(world: World, placement: Placement, scale: float = 0.1) -> None:
    """Move parameters to a generic point: zeros and ones hide errors.

    The noise of an element is a function of its value, so that what is equal stays equal, on this
    mesh and on any other. Elements of constant tensors get theirs by their place in the whole
    tensor, where the layout was said. Gradients that were there before the step are zero: they
    hold what earlier steps left, and the loss of this one says nothing of them.
    """
    first = placement.placed is None
    placement.placed = placement.placed or set()
    for at, spec in enumerate(world.ranks[0].graph.inputs):
        if spec.kind == "grad":
            for trace in world.ranks:
                trace.inputs[at] = torch.zeros_like(trace.inputs[at])
        if spec.kind != "param" or not world.ranks[0].inputs[at].is_floating_point():
            continue
        values = [trace.inputs[at] for trace in world.ranks]
        types = placement.types.get(spec.name, {})
        if first and _may_be_placed(world, placement, spec.name, values):
            placement.placed.add(spec.name)
        seed = sum(ord(letter) * (i + 1) for i, letter in enumerate(spec.name)) % 89
        for rank, value in enumerate(values):
            placed = spec.name in placement.placed
            where = _whole_index(world, rank, value, types) if placed else 0.0
            moved = value + scale * torch.sin(101.0 * value + seed + where)
            world.ranks[rank].inputs[at] = moved


def _may_be_placed(
    world: World, placement: Placement, name: str, values: list[torch.Tensor]
) -> bool:
    """Whether a constant input's layout was said along each axis: then its elements have places."""
    types = placement.types.get(name, {})
    if name in placement.open or not all(is_constant(value) for value in values):
        return False
    return all(types[axis].kind in "RIS" for axis in world.wide if axis in types)


def _whole_index(
    world: World, rank: int, value: torch.Tensor, types: dict[str, Type]
) -> torch.Tensor:
    """A number for each element's place in the whole tensor."""
    total = torch.zeros(value.shape, dtype=torch.float64)
    for dim, extent in enumerate(value.shape):
        start, span = 0, extent
        for axis in reversed(world.mesh):  # inner axes cut finer
            kind = types.get(axis)
            if kind is not None and kind.dim == dim:
                start += world.ranks[rank].coordinate[axis] * span
                span *= world.mesh[axis]
        place = torch.arange(start, start + extent, dtype=torch.float64) * (1.7 + dim)
        total += place.view([-1 if d == dim else 1 for d in range(value.dim())])
    return total


def same_batch(world: World, axis: str) -> list[str]:
    """The arguments that all ranks along an axis were given the same value of."""
    found = []
    for at, spec in enumerate(world.ranks[0].graph.inputs):
        values = [trace.inputs[at] for trace in world.ranks]
        if spec.kind != "arg" or world.mesh[axis] == 1 or not values[0].dim():
            continue
        if any(map(_compat.is_fake, values)):
            continue
        if all(same(values[g[0]], values[r]) for g in world.groups([axis]) for r in g):
            found.append(spec.name)
    return found


def own_batches(world: World, data: tuple[str, ...]) -> None:
    """Give the ranks along data axes a batch each, where they were built with the same one.

    Floating arguments are scaled; others are rolled along their last dimension, all alike, so that
    tokens and labels stay together.
    """
    for axis in data:
        for at, spec in enumerate(world.ranks[0].graph.inputs):
            values = [trace.inputs[at] for trace in world.ranks]
            if spec.name not in same_batch(world, axis):
                continue
            for rank, value in enumerate(values):
                place = world.ranks[rank].coordinate[axis]
                other = value.roll(place, -1)
                if value.is_floating_point():
                    other = other * (1.0 + 0.25 * place)
                world.ranks[rank].inputs[at] = other
