"""Gradients that are meant not to be the derivative, as `ls.intended` says them.

The gradient that leaves such a function is taken as it is: what lies before it is judged as if the
function's derivative were that.
"""

from __future__ import annotations

from typing import Any

import torch

from lockstep.checker.simulation.compare import equal_axes, same_along
from lockstep.checker.simulation.simulate import Simulation, Values


def results_of(sim: Simulation) -> set[int]:
    """The rows that functions of this kind gave: nothing is differentiated through them."""
    found = set()
    for _, _, before, after, _ in sim.world.ranks[0].notes.intents:
        found |= {sim.at[0][node] for node in after if node not in before}
    return found


def meant(sim: Simulation, seen: Values, values: Values, loss: torch.Tensor) -> torch.Tensor:
    """What to add to the loss, so that gradients before such functions are what the program has.

    Args:
        seen: the traced run.
        values: the forward with autograd, cut after the functions.
        loss: the job's, of these values.
    """
    total = loss.new_zeros(())
    for row in _inputs_of(sim):
        held = [value for value in values[row] if value.requires_grad]
        label = sim.world.ranks[0].cotangents.get(sim.rows[row][0].name)
        if len(held) != sim.size or label is None:
            continue
        others = _gradients(loss, held)
        traced = seen[sim.index[label]]
        share = 1.0
        for axis in equal_axes(sim.world, seen[row]):
            share /= sim.world.mesh[axis] if same_along(sim.world, traced, axis) else 1
        for value, grad, other in zip(held, traced, others, strict=True):
            total = total + (value * (grad * share - other)).sum()
    return total


def _inputs_of(sim: Simulation) -> list[int]:
    rows = []
    for _, _, before, _, _ in sim.world.ranks[0].notes.intents:
        rows += [sim.at[0][node] for node in before]
    return list(dict.fromkeys(rows))


def _gradients(loss: torch.Tensor, held: list[Any]) -> list[torch.Tensor]:
    if not loss.requires_grad:
        return [torch.zeros_like(value) for value in held]
    found = torch.autograd.grad(loss, held, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(v) if g is None else g for v, g in zip(held, found, strict=True)]
