"""What can be said where ranks run other programs, as the stages of a pipeline: they have no rows
in common, but messages, collectives, claims, and what one rank computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from lockstep.checker.claimed import claim_finding
from lockstep.checker.finding import MOST_LINES, Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.compare import relation, same
from lockstep.checker.simulation.frontier import explained
from lockstep.checker.simulation.roles import Roles, Waiting, message_axes
from lockstep.checker.simulation.twin import Twin
from lockstep.checker.world import World
from lockstep.errors import first_line

Found = dict[str, Any]  # by name: a parameter's value, or its gradient


def judge_apart(
    world: World, one_rank: Callable[[], World], data: tuple[str, ...]
) -> tuple[list[Finding], list[Finding], Twin]:
    """Replay the programs, each for itself.

    Args:
        world: as captured, its values not changed.
        one_rank: captures the same step on a mesh of ones.
        data: axes along which batches differ.

    Returns:
        What is wrong with the order of messages, the claims that values contradict, and the
        comparison with one rank.
    """
    try:
        many = Roles(world).run()
    except Waiting as waiting:
        return [_never(waiting)], [], Twin(why_not="the step does not end")
    except RuntimeError as error:
        return [], [], Twin(why_not=f"its replay fails: {first_line(error)}")
    return [], list(_broken(many)), _beside(many, one_rank, data)


def _never(waiting: Waiting) -> Finding:
    lines = [line for line in waiting.lines.values() if line]
    told = [f"rank {rank}: waits at {line}" for rank, line in waiting.lines.items()]
    first = lines[0] if lines else ""
    return Finding(
        "LS510",
        "the ranks' programs do not answer each other",
        line=first,
        source=source_of(first),
        got="\n".join(told[:MOST_LINES]),
        want="each message is sent by one program and taken by another",
        why="what waits there waits for ever",
        witness="order",
        related=tuple(line for line in dict.fromkeys(lines) if line != first),
    )


def _broken(many: Roles) -> Iterator[Finding]:
    """Claims of one line on all ranks of a group, that a value is the same, where it is not."""
    world = many.world
    said = [_claims(many, rank) for rank in range(many.size)]
    for axis in world.wide:
        for group in world.groups([axis]):
            for key, (claim, value) in said[group[0]].items():
                others = [said[rank].get(key) for rank in group[1:]]
                kind = claim.types.get(axis)
                if kind is None or kind.kind not in "RI":
                    continue
                if any(other is not None and not same(value, other[1]) for other in others):
                    yield claim_finding(claim.line, claim.what, axis, str(kind))
                    return


def _claims(many: Roles, rank: int) -> dict[tuple[str, str, int], tuple[Any, Any]]:
    """By line, words and how often before: a claim and the value that it is of."""
    times: Counter[tuple[str, str]] = Counter()
    found = {}
    for claim in many.world.ranks[rank].notes.claims:
        key = claim.line, claim.what
        if claim.node in many.claimed[rank]:
            found[*key, times[key]] = claim, many.claimed[rank][claim.node]
        times[key] += 1
    return found


def _beside(many: Roles, one_rank: Callable[[], World], data: tuple[str, ...]) -> Twin:
    """Compare with one rank: what a rank has of the model is what it has, and so are gradients."""
    wide = many.world.wide
    if not set(wide) <= message_axes(many.world) - set(data):
        return Twin(why_not="the ranks' programs differ, and not as stages alone")
    try:
        one = Roles(one_rank()).run()
    except Exception as error:  # the program's own: it may need more ranks than one
        return Twin(why_not=f"the step does not run on one rank: {first_line(error)}")
    whole = _inputs(one, 0)
    for rank in range(many.size):
        for name, value in _inputs(many, rank).items():
            if name not in whole or not same(value, whole[name]):
                return Twin(why_not=f"{name} on rank {rank} is not what it is on one rank")
    return _compared(many, one)


def _compared(many: Roles, one: Roles) -> Twin:
    twin, told, lines = Twin(), [], list[str]()
    returned = [_returned(many, rank) for rank in range(many.size)]
    for expected, *values in zip(_returned(one, 0), *returned, strict=False):
        if isinstance(expected, torch.Tensor) and expected.is_floating_point():
            twin.compared.append("what the step returns")
            if not explained(many.world, values, expected):
                told.append("what the step returns")
    whole, held = _gradients(one, 0), set[str]()
    for rank in range(many.size):
        for name, value in _gradients(many, rank).items():
            held.add(name)
            if name not in whole or same(value, whole[name]):
                continue
            told.append(f"the gradient of {name}: {relation(value, whole[name])}")
            backwards = many.world.ranks[rank].notes.backwards
            lines += [line for line in backwards[-1:] if line]
    lost = sorted(set(whole) - held)
    told += [f"the gradient of {name}: no rank has one" for name in lost]
    twin.compared += [f"the gradient of {name}" for name in held]
    if told:
        twin.findings.append(_finding(told, lines))
    return twin


def _finding(told: list[str], lines: list[str]) -> Finding:
    told, line = list(dict.fromkeys(told)), lines[0] if lines else ""
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return Finding(
        "LS540",
        "the programs of all ranks do not compute what one rank computes",
        line=line,
        source=source_of(line),
        got=f"other numbers for {'; '.join(told[:3])}{more}",
        want="the numbers of the same step on a mesh of ones",
        witness="twin",
    )


def _inputs(roles: Roles, rank: int) -> Found:
    """Parameters and arguments, as they were given."""
    trace = roles.world.ranks[rank]
    pairs = zip(trace.graph.inputs, trace.inputs, strict=True)
    return {spec.name: value for spec, value in pairs if spec.kind != "grad"}


def _gradients(roles: Roles, rank: int) -> Found:
    trace = roles.world.ranks[rank]
    nodes = {node.name: node for node in trace.nodes}
    return {
        name: roles.values[rank][nodes[held]]
        for name, held in trace.grads.items()
        if held is not None
    }


def _returned(roles: Roles, rank: int) -> list[Any]:
    graph = roles.world.ranks[rank].graph
    output: Any = graph.gm.graph.output_node().args[0]
    leaves = [output[leaf.index] for leaf in graph.returns if leaf.kind == "output"]
    return [roles.values[rank][leaf] for leaf in leaves if isinstance(leaf, Node)]
