"""The one-rank twin: the same program on a mesh of ones must give the same numbers.

It finds a forward that is wrong in the same way on all ranks, which no gradient shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep import _compat
from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.loss import miscounted, total
from lockstep.checker.placement import jitter
from lockstep.checker.simulation.compare import relation, same
from lockstep.checker.simulation.frontier import Frontier, explained, frontier
from lockstep.checker.simulation.gold import AGAIN, Gold
from lockstep.checker.simulation.matching import Map, index_map
from lockstep.checker.simulation.simulate import Divergent, Simulation, Values
from lockstep.checker.updates import writes_of
from lockstep.checker.world import World, capture_world
from lockstep.errors import first_line


@dataclass
class Twin:
    """What the comparison gave.

    Args:
        why_not: why there is no twin to compare with; empty where there is.
        compared: what was compared, by name.
        loss_differs: whether the forward is wrong already.
        undecided: results whose place in the one-rank result is not known.
        miscounted: what to say where each rank's loss is right and their sum or mean is not.
    """

    findings: list[Finding] = field(default_factory=list)
    why_not: str = ""
    compared: list[str] = field(default_factory=list)
    loss_differs: bool = False
    undecided: list[str] = field(default_factory=list)
    miscounted: Finding | None = None


def judge(
    world: World,
    gold: Gold,
    step: Callable[..., Any],
    make: Callable[[Any], Any],
    world_of: Callable[..., World] = capture_world,
) -> Twin:
    """Run the step on one rank and compare its results.

    Args:
        world: jittered; `gold` is its judged run, whose placement is used.
        step, make: as for `capture_world`; `make` gets a mesh of the same axes, each of one rank.
        world_of: captures the step.
    """
    try:
        with _compat.quiet_fake_errors():
            one = world_of(step, make, dict.fromkeys(world.mesh, 1))
    except Exception as error:  # the program's own: it may need more ranks than one
        return Twin(why_not=f"the step does not run on one rank: {first_line(error)}")
    return beside(world, gold, one)


def beside(world: World, gold: Gold, one: World) -> Twin:
    """Compare the results with those of the same step's capture on one rank; see `judge`."""
    if world.rounded or one.rounded:
        return Twin(why_not="the step does not run in float64, and what Python reads is rounded")
    maps, why_not = _match_inputs(world, one, gold)
    if why_not:
        return Twin(why_not=why_not)
    many, single = Simulation(world, neutral=True), Simulation(one, neutral=True)
    seen: Values = {}
    whole: Values = {}
    try:
        values = many.run(many.feed(), seen=seen)
        results = single.run(single.feed(), seen=whole)
    except (RuntimeError, Divergent) as error:
        return Twin(why_not=f"its replay fails: {first_line(error)}")
    if _other_parts(gold, many, single, seen, whole):
        return Twin(why_not="each of its updates is by another part of the batch there")
    return _compare(gold, many, single, (seen, values), (whole, results), maps)


def _match_inputs(world: World, one: World, gold: Gold) -> tuple[dict[str, Map], str]:
    """Locate every input's elements in the one-rank inputs; a text where one is not there."""
    jitter(one, gold.placement)
    specs = {spec.name: at for at, spec in enumerate(one.ranks[0].graph.inputs)}
    maps: dict[str, Map] = {}
    for at, spec in enumerate(world.ranks[0].graph.inputs):
        if spec.name not in specs:
            return maps, f"on one rank the step has no input {spec.name}"
        whole = one.ranks[0].inputs[specs[spec.name]]
        locals_ = [trace.inputs[at] for trace in world.ranks]
        found = index_map(world, locals_, whole, gold.placement.types.get(spec.name, {}))
        if found is not None:
            maps[spec.name] = found
        elif spec.kind != "grad":
            return maps, f"{spec.name} on the ranks is not made of what it is on one rank"
    return maps, ""


def _compare(
    gold: Gold,
    many: Simulation,
    single: Simulation,
    ours: tuple[Values, Values],
    theirs: tuple[Values, Values],
    maps: dict[str, Map],
) -> Twin:
    twin = Twin()
    (seen, values), (whole, results) = ours, theirs
    wrong = _compare_losses(gold, many, single, seen, whole, twin)
    told = ["the loss"] if wrong else []
    twin.loss_differs = bool(wrong)
    for name in gold.parameters:
        held = gold.final(name, values)
        node = single.world.ranks[0].grads.get(name)
        if gold.updated(name) and held is node is None and name in maps:
            twin.compared.append(f"{name} after the step")
            row = many.at[0][many.world.ranks[0].placeholder(name)]
            expected = results[_row(single, name)][0]
            if _differing(values[row], expected, maps[name]) is not None:
                told.append(f"{name} after the step")
                wrong += [] if wrong else writes_of(many, row)
        if held is None or node is None:
            continue
        expected = results[single.index[node]][0]
        if name not in maps or expected.numel() != whole[_row(single, name)][0].numel():
            twin.undecided.append(f"the gradient of {name}")
            continue
        twin.compared.append(f"the gradient of {name}")
        rank = _differing(held, expected, maps[name])
        if rank is not None:
            how = relation(held[rank], expected.flatten()[maps[name][rank]].view_as(held[rank]))
            told.append(f"the gradient of {name}: {how}")
            if not wrong:
                wrong.append(many.index[str(many.world.ranks[0].grads[name])])
    if told:
        first = frontier(many, single, seen, whole, wrong)
        counted = twin.miscounted if first.row is None else None
        twin.findings.append(counted or _finding(many, first, told))
    return twin


def _compare_losses(
    gold: Gold, many: Simulation, single: Simulation, seen: Values, whole: Values, twin: Twin
) -> list[int]:
    """The rows of losses that are not what one rank computes; without a loss, of the results."""
    ours, theirs = ([sim.at[0][node] for node in _roots(gold, sim)] for sim in (many, single))
    if not ours:
        return _compare_results(many, single, seen, whole, twin)
    results = [whole[partner][0].numel() > 1 for partner in theirs]
    if any(results):  # what a check itself differentiates
        twin.compared.append("what the step returns")
        pairs = zip(ours, theirs, strict=False)
        return [row for row, b in pairs if not explained(many.world, seen[row], whole[b][0])]
    # Of several backwards only the sum counts: ranks may share out their batches otherwise.
    twin.compared.append("the loss")
    ways = gold.meaning.outer
    expected = sum((whole[b][0] for b in theirs[1:]), whole[theirs[0]][0])
    if all(same(t, expected) for t in total(many.world, [seen[row] for row in ours], ways)):
        return []
    twin.miscounted = miscounted(many, ours, seen, ways, expected)
    return ours


def _roots(gold: Gold, sim: Simulation) -> list[Any]:
    roots = enumerate(sim.world.ranks[0].notes.roots)
    return [node for number, (node, _) in roots if number not in gold.meaning.inner]


def _other_parts(
    gold: Gold, many: Simulation, single: Simulation, seen: Values, whole: Values
) -> bool:
    """Whether the ranks' first steps are on other parts of the batch than one rank's first step.

    Two steps on halves of each rank's batch are not two on the halves of the whole batch.
    """
    ours, theirs = ([sim.at[0][node] for node in _roots(gold, sim)] for sim in (many, single))
    ways = gold.meaning.outer
    if gold.problem != AGAIN or len(ours) < 2 or not theirs or set(ways[0].values()) == {"same"}:
        return False
    first = total(many.world, [seen[ours[0]]], ways[:1])
    return not all(same(value, whole[theirs[0]][0]) for value in first)


def _compare_results(
    many: Simulation, single: Simulation, seen: Values, whole: Values, twin: Twin
) -> list[int]:
    left, right = _returned(many), _returned(single)
    wrong = []
    for row, partner in zip(left, right, strict=False):
        expected = whole[partner][0]
        if not isinstance(expected, torch.Tensor) or not expected.is_floating_point():
            continue
        twin.compared.append("what the step returns")
        if not explained(many.world, seen[row], expected):
            wrong.append(row)
    return wrong


def _returned(sim: Simulation) -> list[int]:
    output = sim.world.ranks[0].graph.gm.graph.output_node().args[0]
    leaves = [leaf for leaf in sim.world.ranks[0].graph.returns if leaf.kind == "output"]
    return [sim.at[0][output[leaf.index]] for leaf in leaves]  # type: ignore[index]


def _row(sim: Simulation, name: str) -> int:
    return sim.at[0][sim.world.ranks[0].placeholder(name)]


def _differing(held: list[torch.Tensor], whole: torch.Tensor, maps: Map) -> int | None:
    for rank, value in enumerate(held):
        if value.shape != maps[rank].shape or not same(value, whole.flatten()[maps[rank]]):
            return rank
    return None


def _finding(sim: Simulation, first: Frontier, told: list[str]) -> Finding:
    line = sim.line(first.row) if first.row is not None else ""
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    wide = sim.world.wide
    return Finding(
        "LS540",
        "the program does not compute what it computes on one rank",
        line=line,
        source=source_of(line),
        axis=wide[0] if len(wide) == 1 else None,
        got=f"other numbers for {'; '.join(told[:3])}{more}",
        want="the numbers of the same program on a mesh of ones",
        why="from this line on, no layout and no pending sum explains the ranks' values"
        if line
        else "",
        witness="twin",
        related=first.lines,
    )
