"""True gradients by autograd through the simulated ranks, and what each traced one is beside them.

The copies of a tied value move together, so its true gradient is the sum over its copies. A traced
gradient is whole (each rank holds that sum), partial (the ranks' parts add up to it), own (the
value varies, and each rank holds its own), or wrong. A true gradient of zero shows nothing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.checker.intents import meant, results_of
from lockstep.checker.loss import Meaning, loss_meaning
from lockstep.checker.placement import Placement
from lockstep.checker.relaid import relaid, relaid_grads
from lockstep.checker.simulation.compare import (
    equal_axes,
    factor_of,
    group_sum,
    is_zero,
    relation,
    same,
    same_along,
)
from lockstep.checker.simulation.simulate import Patch, Simulation, Values
from lockstep.errors import first_line

Kinds = dict[str, str]  # axis -> "whole", "partial" or "own"
Factors = dict[str, list[list[float]]]  # parameter -> by reading the factor on each rank
NOT_EXERCISED = "not exercised"
AGAIN = "no true gradients: the step differentiates again after it has changed or used gradients"


@dataclass
class Judged:
    """What one parameter's final gradient is; `wrong` is empty where it is right.

    Args:
        updated: the step changed the parameter by itself, and left it without a gradient.
        returned: the step sets no `.grad` at all, so what it makes of its gradients is not known.
    """

    wrong: str = ""
    partial_on: str | None = None
    exercised: bool = True
    clipped: bool = False
    updated: bool = False
    returned: bool = False


def _copies_for_the_backward() -> Any:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)


class Gold:
    """One traced run of a world and the true gradients beside it.

    Args:
        pending: axis -> "sum" or "mean": a reduction that comes after the step, as DDP's.
    """

    def __init__(
        self, sim: Simulation, placement: Placement, pending: dict[str, str] | None = None
    ) -> None:
        self.sim, self.world, self.placement = sim, sim.world, placement
        self.pending = pending or {}
        self.seen: Values = {}
        self.values = sim.run(sim.feed(), seen=self.seen)
        self.meaning: Meaning = loss_meaning(sim, self.seen)
        self.gold: Values = {}
        self.problem = ""
        self._relaid = relaid_grads(self.world.ranks[0].graph)
        self._forward: Values = {}
        self._equal: dict[int, list[str]] = {}
        self.parameters = {
            spec.name: row
            for row, spec in zip(sim.inputs, self.world.ranks[0].graph.inputs, strict=True)
            if spec.kind == "param" and spec.requires_grad
        }
        if self._again():
            self.problem = AGAIN
        elif self.world.ranks[0].notes.roots:
            self._differentiate()

    def _again(self) -> bool:
        """Whether a loss is made of gradients, or of what they changed: no forward has it."""
        at, notes = self.sim.at[0], self.world.ranks[0].notes
        return any(self.sim.phase[at[root]] not in ("input", "forward") for root, _ in notes.roots)

    # -- the true gradients

    def _differentiate(self) -> None:
        """Differentiate, again with copies where the step writes over what its forward read.

        A Function may do that with a buffer, whose own backward computes what it held anew.
        """
        for keeping in (contextlib.nullcontext, _copies_for_the_backward):
            self.problem = ""
            try:
                with keeping():
                    self._differentiate_once()
                return
            except (RuntimeError, NotImplementedError) as error:
                self.problem = f"no true gradients: {first_line(error)}"
                if "modified by an inplace operation" not in str(error):
                    return

    def _differentiate_once(self) -> None:
        """Run the forward with autograd and differentiate the job's loss by every value."""
        sim = self.sim
        values = sim.feed()
        leaves: list[tuple[int, int, torch.Tensor]] = []
        for (row, held), spec in zip(values.items(), self.world.ranks[0].graph.inputs, strict=True):
            for rank, value in enumerate(held):
                if spec.requires_grad and value.is_floating_point():
                    leaf = value.requires_grad_()
                    leaves.append((row, rank, leaf))
                    with torch.enable_grad():
                        held[rank] = leaf.clone()  # the step may write to it
        edges: Values = {}
        sim.run_forward(values, results_of(sim), edges)
        self._take_gradients(values, leaves, edges)

    def _take_gradients(
        self, values: Values, leaves: list[tuple[int, int, torch.Tensor]], edges: Values
    ) -> None:
        taken = list(leaves)
        inputs = {row for row, _, _ in leaves}
        for row, held in values.items():
            if row in inputs:
                continue
            for rank, value in enumerate(held):
                known = row not in edges or edges[row][rank] is not None
                if isinstance(value, torch.Tensor) and value.requires_grad and known:
                    taken.append((row, rank, value))
        loss = self._job_loss(values)
        if loss is not None and self.world.ranks[0].notes.intents:
            loss = loss + meant(self.sim, self.seen, values, loss)
        if loss is None or not loss.requires_grad:
            self.problem = "no true gradients: the loss depends on nothing that needs one"
            return
        places = [edges[row][rank] if row in edges else value for row, rank, value in taken]
        grads = torch.autograd.grad(loss, places, allow_unused=True)
        used = {row for (row, _, _), grad in zip(taken, grads, strict=True) if grad is not None}
        for (row, rank, tensor), grad in zip(taken, grads, strict=True):
            if row in used:
                held = self.gold.setdefault(row, [None] * self.sim.size)
                held[rank] = torch.zeros_like(tensor) if grad is None else grad.detach()
        for row, held in self.gold.items():  # a rank on which it needs no gradient
            like = next(value for value in held if value is not None)
            self.gold[row] = [torch.zeros_like(like) if g is None else g for g in held]

    def _job_loss(self, values: Values) -> torch.Tensor | None:
        """What all ranks' backward() differentiate together: sums over axes of partial losses."""
        total: torch.Tensor | None = None
        roots = zip(self.world.ranks[0].notes.roots, self.meaning.roots, strict=True)
        for number, ((root, seed), ways) in enumerate(roots):
            if number in self.meaning.inner:
                continue
            share = 1.0
            for axis, way in ways.items():
                share /= self.world.mesh[axis] if way == "same" else 1
            row = self.sim.at[0][root]
            weights = None
            if seed is not None:
                weights = self.seen[self.sim.at[0][seed]]
            for rank, value in enumerate(values[row]):
                part = value if weights is None else value * weights[rank]
                part = part.sum() * share
                total = part if total is None else total + part
        return total

    # -- one traced gradient

    def equal(self, row: int) -> list[str]:
        """The axes along which all ranks hold the same value of a forward row."""
        if row not in self._equal:
            self._equal[row] = equal_axes(self.world, self.seen[row])
        return self._equal[row]

    def kinds(
        self, row: int, held: list[torch.Tensor], tied: list[str] | None = None
    ) -> Kinds | None:
        """What gradients of a forward row are, per axis; None: wrong.

        Args:
            tied: the axes along which the value's copies move together; as the values say.
        """
        tied = self.equal(row) if tied is None else tied
        true = group_sum(self.world, self.gold[row], tied)
        if is_zero(true):
            return {axis: NOT_EXERCISED for axis in self.world.wide} if is_zero(held) else None
        for partial in _subsets(tied):
            summed = group_sum(self.world, held, list(partial))
            if all(same(a, b) for a, b in zip(summed, true, strict=True)):
                return {
                    axis: "partial" if axis in partial else "whole" if axis in tied else "own"
                    for axis in self.world.wide
                }
        return None

    def cotangents(self, seen: Values | None = None) -> dict[int, tuple[int, Kinds | None]]:
        """Backward row -> the forward row whose gradient it holds, and its kinds."""
        seen = self.seen if seen is None else seen
        found = {}
        for forward, backward in self.world.ranks[0].cotangents.items():
            row, held = self.sim.index[forward], self.sim.index[backward]
            if row in self.gold and held in seen:
                found[held] = row, self.kinds(row, seen[held])
        return dict(sorted(found.items()))

    # -- the gradients that the optimizer takes

    def rerun(self, patch: Patch) -> tuple[Values, Values]:
        """The traced run with some rows' values replaced: (values, seen)."""
        first = min(patch, default=0)
        if first < self.sim.settled:
            seen: Values = {}
            return self.sim.run(self.sim.feed(), seen=seen, patch=patch), seen
        seen = {row: held for row, held in self.seen.items() if row < first}
        return self.sim.run(dict(seen), seen=seen, patch=patch), seen

    def final(self, name: str, values: Values) -> list[torch.Tensor] | None:
        """The gradients of a parameter that the optimizer takes, after pending reductions."""
        node = self.world.ranks[0].grads.get(name)
        if node is None:
            return None
        held = values[self.sim.index[node]]
        if name in self._relaid:
            held = relaid(self.world, held, *self._relaid[name])
        for axis, way in self.pending.items():
            if axis in self.placement.tied[name]:
                held = group_sum(self.world, held, [axis])
                if way == "mean":
                    held = [value / self.world.mesh[axis] for value in held]
        return held

    def updated(self, name: str) -> bool:
        """Whether the step itself changed a parameter for which its backward made a gradient."""
        row = self.parameters[name]
        if self.sim.rows[row][0] not in self.world.ranks[0].notes.cotangents:
            return False
        pairs = zip(self.values[row], self.seen[row], strict=True)
        return any(not same(after, before) for after, before in pairs)

    def true_final(self, name: str, tied: list[str]) -> list[torch.Tensor]:
        """What the optimizer should take: of a mean, the mean."""
        row = self.parameters[name]
        gold = self.gold.get(row) or [torch.zeros_like(v) for v in self.seen[row]]
        share = 1.0
        for axis, way in self.meaning.ways.items():
            share /= self.world.mesh[axis] if way == "mean" else 1
        return [value * share for value in group_sum(self.world, gold, tied)]

    def judge_parameters(self, values: Values | None = None) -> dict[str, Judged]:
        """Judge every parameter's final gradient."""
        values = self.values if values is None else values
        found = {}
        factors: Factors = {}
        for name in self.parameters:
            held = self.final(name, values)
            readings = self._readings(name)
            judged = [self._judge(name, held, tied, factors) for tied in readings]
            found[name] = next((j for j in judged if not j.wrong), judged[0])
        _one_factor(found, factors)
        return found

    def _readings(self, name: str) -> list[list[str]]:
        """The ways in which a parameter may lie: tied as placed, or own where that is left open."""
        tied = self.placement.tied[name]
        open_ = self.placement.open.get(name, [])
        return [[a for a in tied if a not in own] for own in _subsets(open_)]

    def _judge(
        self,
        name: str,
        held: list[torch.Tensor] | None,
        tied: list[str],
        factors: Factors,
    ) -> Judged:
        true = self.true_final(name, tied)
        if held is None:
            if is_zero(true):
                return Judged(exercised=False)
            if self.updated(name):
                return Judged(updated=True)
            if not any(self.world.ranks[0].grads.values()) and self._asked_for(name):
                return Judged(returned=True)
            return Judged("missing: .grad is None")
        if any(h.shape != t.shape for h, t in zip(held, true, strict=True)):
            return Judged(relation(held[0], true[0]))
        if self._from_others(name):
            found = [factor_of(h, t) for h, t in zip(held, true, strict=True)]
            if any(factor is None for factor in found):
                if is_zero(true) and is_zero(held):
                    return Judged(exercised=False)
                partial = self._partial_on(held, true, tied)  # it went through a bucket of several
                return Judged("no multiple of the true one", partial, clipped=partial is None)
            factors.setdefault(name, []).append([f for f in found if f is not None])
            return Judged(clipped=True)
        wrong = [r for r, h in enumerate(held) if not same(h, true[r])]
        if not wrong:
            return Judged(exercised=not is_zero(true))
        partial = self._partial_on(held, true, tied)
        return Judged(relation(held[wrong[0]], true[wrong[0]]), partial)

    def _asked_for(self, name: str) -> bool:
        """Whether a backward made a gradient for a parameter."""
        return bool(self._raw_rows.get(self.parameters[name]))

    def _partial_on(
        self, held: list[torch.Tensor], true: list[torch.Tensor], tied: list[str]
    ) -> str | None:
        """The axis whose ranks' gradients add up to the true ones, or have them as their mean."""
        found = None
        for axis in tied:
            if axis in self.pending or same_along(self.world, held, axis):
                continue
            summed = group_sum(self.world, held, [axis])
            ways = [1.0, 1.0 / self.world.mesh[axis]]
            if any(all(same(s * w, t) for s, t in zip(summed, true, strict=True)) for w in ways):
                found = axis
        return found

    def _from_others(self, name: str) -> bool:
        """Whether a final gradient is computed from other parameters' too, as by clipping.

        The loss then fixes its direction alone, and the factor must be one for all. A number that a
        live step read from gradients may be in any of them.
        """
        if self.world.ranks[0].notes.late_reads:
            return True
        node = self.world.ranks[0].grads.get(name)
        if node is None:
            return False
        mine, every = self._raw_rows.get(self.parameters[name], set()), self._all_raw_rows
        todo, done = [self.sim.index[node]], set()
        while todo:
            row = todo.pop()
            if row in done:
                continue
            done.add(row)
            if row in every and row not in mine:
                return True
            if row not in mine and self.sim.phase[row] != "forward":
                todo += self.sim.sources(row)
        return False

    @functools.cached_property
    def _raw_rows(self) -> dict[int, set[int]]:
        """Parameter row -> the rows of its gradients as backward() left them."""
        at, held = self.sim.at[0], self.world.ranks[0].notes.cotangents
        rows = set(self.parameters.values())
        return {at[f]: {at[b] for b in backs} for f, backs in held.items() if at[f] in rows}

    @functools.cached_property
    def _all_raw_rows(self) -> set[int]:
        return set().union(*self._raw_rows.values())


def _subsets(axes: list[str]) -> list[tuple[str, ...]]:
    return [s for n in range(len(axes) + 1) for s in itertools.combinations(axes, n)]


def _one_factor(found: dict[str, Judged], factors: Factors) -> None:
    """A common factor, as of clipping, must be the same for all ranks and parameters.

    Of a parameter that may lie in several ways, the one counts for which the others speak.
    """
    sure = [*(held for held in factors.values() if len(held) == 1), *factors.values()]
    near = sure[0][0][0] if sure else 1.0
    read = [min(held, key=lambda f: max(abs(x - near) for x in f)) for held in factors.values()]
    every = [factor for values in read for factor in values]
    if every and max(every) - min(every) > 1e-7 * max(abs(f) for f in every):
        shown = ", ".join(f"{value:.4g}" for value in sorted(set(every))[:4])
        for name in factors:
            found[
                name
            ].wrong = f"scaled by factors that differ between ranks or parameters: {shown}"
