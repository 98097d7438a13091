"""From wrong gradients to the line: bisect the backward to the first wrong one on a path.

Every gradient has a true one beside it, so no rule is needed. A collective that may be missing is
put in at each place where a gradient is partial, in the simulation alone, and the places where that
repairs the most are told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.checker.finding import Finding
from lockstep.checker.phrases import (
    made_by,
    missing_conversion,
    unlocated,
    unreduced,
    wrong_backward,
)
from lockstep.checker.simulation.compare import group_sum, relation, same, same_along
from lockstep.checker.simulation.gold import Gold, Judged, Kinds
from lockstep.checker.simulation.simulate import Values, op_name

Labels = dict[int, tuple[int, Kinds | None]]
Repair = Callable[[list[Any]], list[Any]]
_MOST = 4


@dataclass
class _State:
    """The simulated run with the repairs made so far."""

    values: Values
    seen: Values
    patch: dict[int, Repair] = field(default_factory=dict)


class Locator:
    """Finds the faults of one judged run, one after the other."""

    def __init__(self, gold: Gold, known: set[str]) -> None:
        self.gold, self.sim, self.world, self.known = gold, gold.sim, gold.world, known

    def run(self) -> list[Finding]:
        """Findings in the order of the backward; each was repaired before the next was sought."""
        state = _State(self.gold.values, self.gold.seen)
        found: list[Finding] = []
        while len(found) < _MOST:
            judged = self.gold.judge_parameters(state.values)
            judged = {n: j for n, j in judged.items() if j.wrong and n not in self.known}
            if not judged:
                break
            finding = self._next(state, judged)
            if finding is None:
                break
            found.append(finding)
            state.values, state.seen = self.gold.rerun(state.patch)
        return found

    def _next(self, state: _State, judged: dict[str, Judged]) -> Finding | None:
        labels = self.gold.cotangents(state.seen)
        wrong = [row for row, (_, kinds) in labels.items() if kinds is None]
        if wrong:
            return self._from_gradient(wrong[0], labels, state)
        for name, judgement in judged.items():
            if judgement.wrong and judgement.partial_on:
                return self._from_parameter(name, judgement.partial_on, labels, state)
        return None  # the backward is right: what follows it is not

    # -- a wrong gradient of a value

    def _from_gradient(self, row: int, labels: Labels, state: _State) -> Finding:
        best: tuple[tuple[int, int], int, str] | None = None
        left = self._badness(state)
        for through in (False, True):
            for axis in self.world.wide:
                sites = self._sites(row, axis, labels, state, through)
                found = self._best(sites, axis, labels, state)
                if found is not None and found[0] < left:
                    left, best = found[0], (*found, axis)
            if left == (0, 0):
                break
        if best is None:
            return self._own_backward(row, labels, state)
        _, site, axis = best
        self._repair(site, axis, state)
        return missing_conversion(self.gold, site, self._forward_of(site, labels), axis)

    def _own_backward(self, row: int, labels: Labels, state: _State) -> Finding:
        forward = labels[row][0]
        true = group_sum(self.world, self.gold.gold[forward], self.gold.equal(forward))
        held = state.seen[row]
        rank = next((r for r in range(self.sim.size) if not same(held[r], true[r])), 0)
        how = relation(held[rank], true[rank])
        behind = self._behind(row, labels)
        state.patch[row] = lambda _: true
        before = [labels[r][0] for r in behind if r in labels]
        between = [r for r in behind if op_name(self.sim.rows[r][0]) in _REDUCES]
        return wrong_backward(self.gold, forward, before, between, how)

    def _forward_of(self, site: int, labels: Labels) -> int | None:
        """The forward value whose gradient a row is, or is added to."""
        if site in labels:
            return labels[site][0]
        users = [self.sim.at[0][node] for node in self.sim.rows[site][0].users]
        for user in users:
            found = self._forward_of(user, labels) if self.sim.phase[user] == "backward" else None
            if found is not None:
                return found
        return None

    # -- a parameter's gradient that stayed partial

    def _from_parameter(self, name: str, axis: str, labels: Labels, state: _State) -> Finding:
        end = self.gold.parameters[name]
        own = [row for row, (forward, _) in labels.items() if forward == end]
        rows = [r for row in own for r in (*self._sites(row, axis, labels, state), row)]
        said = self.gold.placement.types.get(name, {}).get(axis)
        before = self._badness(state)
        best = (
            None if said is not None and said.kind == "R" else self._best(rows, axis, labels, state)
        )
        if best is not None and best[0] < before:
            self._repair(best[1], axis, state)
            forward = self._forward_of(best[1], labels)
            return missing_conversion(self.gold, best[1], forward, axis, parameter=name)
        if own:
            self._repair(own[-1], axis, state)
        return unreduced(self.gold, name, axis)

    # -- places for a missing collective

    def _sites(
        self, row: int, axis: str, labels: Labels, state: _State, through: bool = False
    ) -> list[int]:
        """Rows behind a gradient that are partial along an axis, in backward order.

        Also what is added up to it, without a true gradient of its own: parts that differ.

        Args:
            through: also what lies behind any operator, as where a norm's backward takes one
                partial gradient apart and adds both parts to a whole one.
        """
        found, todo, done = [], [row], set()
        while todo:
            here = todo.pop()
            for source in self.sim.sources(here):
                if source in done or self.sim.phase[source] != "backward":
                    continue
                done.add(source)
                if source in labels:
                    kinds = labels[source][1]
                    if (
                        kinds
                        and kinds.get(axis) == "partial"
                        and self._differs(source, axis, state)
                    ):
                        found.append(source)
                        todo.append(source)
                elif through or op_name(self.sim.rows[source][0]) in _PASSES:
                    todo.append(source)
                    if self._differs(source, axis, state):
                        found.append(source)
                elif self._differs(source, axis, state) and self._same_shape(source, row, state):
                    found.append(source)
        return sorted(found)

    def _differs(self, row: int, axis: str, state: _State) -> bool:
        held = state.seen[row]
        shapes = {value.shape if isinstance(value, torch.Tensor) else None for value in held}
        terms = len(shapes) == 1 and None not in shapes
        return terms and not same_along(self.world, held, axis)

    def _same_shape(self, row: int, other: int, state: _State) -> bool:
        a, b = state.seen[row][0], state.seen[other][0]
        return getattr(a, "shape", None) == b.shape

    def _behind(self, row: int, labels: Labels) -> list[int]:
        """The rows between a gradient and the nearest ones that have a true one, and those."""
        found, todo, done = [], [row], set()
        while todo:
            for source in self.sim.sources(todo.pop()):
                if source in done or self.sim.phase[source] != "backward":
                    continue
                done.add(source)
                found.append(source)
                if source not in labels:
                    todo.append(source)
        return found

    def _best(
        self, sites: list[int], axis: str, labels: Labels, state: _State
    ) -> tuple[tuple[int, int], int] | None:
        """The place whose repair leaves the least wrong; of equals the one nearest its use.

        But the gradient of what was gathered is partial by nature: its backward should add it up.
        """
        scored = []
        for site in sites:
            values, seen = self.gold.rerun({**state.patch, site: self._summed(axis)})
            left = self._badness(_State(values, seen))
            scored.append((left, not self._was_gathered(site, labels), site))
        best = min(scored, default=None)
        return (best[0], best[2]) if best is not None else None

    def _was_gathered(self, site: int, labels: Labels) -> bool:
        made = made_by(self.gold, labels[site][0]) if site in labels else None
        return made is not None and "all_gather" in made[1]

    def _repair(self, site: int, axis: str, state: _State) -> None:
        state.patch[site] = self._summed(axis)

    def _summed(self, axis: str) -> Repair:
        return lambda values: group_sum(self.world, values, [axis])

    def _badness(self, state: _State) -> tuple[int, int]:
        judged = self.gold.judge_parameters(state.values)
        labels = self.gold.cotangents(state.seen)
        return (
            sum(bool(j.wrong) for j in judged.values()),
            sum(kinds is None for _, kinds in labels.values()),
        )


_PASSES = {"aten.add", "aten.alias", "aten.view", "aten.clone", "aten.t", "aten.expand"}
_REDUCES = {"_c10d_functional.all_reduce", "_c10d_functional.reduce_scatter_tensor"}


def locate(gold: Gold, known: set[str]) -> list[Finding]:
    """Findings for what is wrong in a judged run's backward; an unlocated one if need be.

    Args:
        known: parameters whose fault was found already, after the backward.
    """
    found = Locator(gold, known).run()
    judged = gold.judge_parameters().items()
    left = [unlocated(gold, n, j.wrong) for n, j in judged if j.wrong and n not in known]
    return found or left[:1]
