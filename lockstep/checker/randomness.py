"""Random draws: one stream on what is the same along an axis, streams of their own on what varies.

A draw is typed like the value that it is combined with; equality of values decides nothing, since a
constant is equal everywhere and may still be a shard.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.simulation.compare import same_along
from lockstep.checker.simulation.simulate import Simulation, Values, op_name
from lockstep.checker.world import SEED
from lockstep.spmd.types import Type

Types = Mapping[str, Mapping[str, Type]]
# A row that was looked up by a drawn number is a draw itself; the table is not combined with it.
_LOOK_UPS = ("aten.embedding", "aten.index", "aten.index_select", "aten.gather")


def judge(sim: Simulation, seen: Values, types: Types) -> tuple[list[Finding], list[str]]:
    """Judge every draw of the forward.

    Args:
        seen: values of the traced run, which stand in where a type is not known.
        types: node name -> axis -> type, as far as they are known.

    Returns:
        Findings; and what is undecided, since nobody seeded the streams.
    """
    found: list[Finding] = []
    undecided: list[str] = []
    for row in _drawing(sim):
        states = [sim.states[rank].get(sim.rows[row][rank]) for rank in range(sim.size)]
        if any(state is None for state in states):
            continue
        like = _combined_with(sim, row)
        for axis in sim.world.wide:
            kind = _kind(sim, like, axis, seen, types)
            shared = same_along(sim.world, states, axis)
            if kind == "same" and not shared:
                found.append(_apart(sim, row, axis))
            elif kind == "varies" and shared and all(_unseeded(state) for state in states):
                undecided.append(_unsaid(sim, row, axis))
            elif kind == "varies" and shared:
                found.append(_alike(sim, row, axis))
    return found, list(dict.fromkeys(undecided))


def _drawing(sim: Simulation) -> list[int]:
    drawn = {node for node, _ in sim.world.ranks[0].notes.draws}
    forward = (r for r, nodes in enumerate(sim.rows) if sim.phase[r] == "forward")
    return [row for row in forward if sim.rows[row][0] in drawn and _draws(sim.rows[row][0])]


def _draws(node: Node) -> bool:
    """Whether an operator that can draw does: attention with a dropout of 0 does not."""
    schema = _compat.schema_or_none(node.target)
    for at, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else argument.default_value
            return node.kwargs.get("dropout_p", given) != 0
    return True


def _combined_with(sim: Simulation, row: int) -> int | None:
    """The value that a draw goes into: dropout's input, or what a mask multiplies."""
    node = sim.rows[row][0]
    if op_name(node) == "aten.native_dropout":
        return sim.at[0][node.all_input_nodes[0]]
    behind = {node}
    todo: list[Node] = [node]
    while todo:
        here = todo.pop(0)
        for user in here.users:
            others = [n for n in user.all_input_nodes if n not in behind and _counts(n, user)]
            if others and op_name(user) not in ("aten.copy_", *_LOOK_UPS):
                return sim.at[0][others[0]]
            behind.add(user)
            todo.append(user)
    sources = node.all_input_nodes
    return sim.at[0][sources[0]] if sources else None


def _counts(node: Node, user: Node) -> bool:
    """Whether a draw that an operator combines with a value is a draw for that value.

    A choice between two values counts whole numbers too, as labels of which some are dropped; else
    they are places and lengths, of which a mask is made.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    made = node.op == "call_function" and not node.all_input_nodes  # a number to put in their place
    chosen = op_name(user) == "aten.where" and value.dtype != torch.bool and not made
    return value.is_floating_point() or chosen


def _kind(sim: Simulation, like: int | None, axis: str, seen: Values, types: Types) -> str | None:
    """Whether a value is the "same" along an axis or "varies"; None where nothing tells."""
    if like is None:
        return None
    known = types.get(sim.rows[like][0].name, {}).get(axis)
    if known is not None:
        # One mask scales every term of a sum alike: on a partial the ranks must draw the same.
        return "same" if known.kind in ("R", "I", "P") else "varies"
    values = seen[like]
    if all(v.numel() < 2 or bool((v == v.flatten()[0]).all()) for v in values):
        return None
    return "same" if same_along(sim.world, values, axis) else "varies"


def _unseeded(state: torch.Tensor | None) -> bool:
    """Whether a generator's state goes back to the seed that the check itself gave it."""
    return state is not None and int(state[:8].clone().view(torch.int64).item()) == SEED


def _apart(sim: Simulation, row: int, axis: str) -> Finding:
    line = sim.line(row)
    return Finding(
        "LS520",
        f"each rank of {axis} draws other random numbers for what is the same on all of them",
        line=line,
        source=source_of(line),
        axis=axis,
        got=f"a stream for each rank of {axis}",
        want=f"one stream, shared along {axis}",
        why="from here on the ranks hold different values where the program takes them for equal",
        fix=f"seed it alike on every rank of {axis}: a seed that leaves the {axis} rank out",
        witness="randomness",
    )


def _alike(sim: Simulation, row: int, axis: str) -> Finding:
    line = sim.line(row)
    return Finding(
        "LS521",
        f"every rank of {axis} draws the same random numbers for values that differ",
        line=line,
        source=source_of(line),
        axis=axis,
        got=f"one stream, shared along {axis}",
        want=f"a stream for each rank of {axis}",
        why="the shards of one tensor get the same mask: the draws are not independent",
        fix=f"add the rank on {axis} to the seed",
        witness="randomness",
    )


def _unsaid(sim: Simulation, row: int, axis: str) -> str:
    return (
        f"random numbers at {sim.line(row)} are for values that differ along {axis}: nothing seeds "
        f"the streams, so whether the ranks of {axis} draw their own is not known"
    )
