"""From a world to what the interpretation of one axis reads."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep.checker.inference.flow import Graphs
from lockstep.checker.inference.kinds import EQUAL, UNKNOWN, VARYING, Kind, kind_of, shard
from lockstep.checker.world import RankTrace, World
from lockstep.spmd.types import Type


def aligned(world: World) -> bool:
    """Whether all ranks' graphs have the same operators in the same order."""
    shapes = {tuple((n.op, str(n.target)) for n in _comparable(trace)) for trace in world.ranks}
    return len(shapes) == 1


def _comparable(trace: RankTrace) -> list[Node]:
    return [n for n in trace.nodes if n.op not in ("placeholder", "output", "get_attr")]


def graphs_of(world: World, axis: str, rows: bool = True) -> Graphs:
    """Return what there is along one axis.

    Args:
        rows: take arguments that differ on an axis over which losses add up as shards of rows.
    """
    group = [world.ranks[rank] for rank in world.group(0, axis)]
    trace = group[0]
    by_name = {node.name: node for node in trace.nodes}
    claims: dict[Node, Type] = {
        by_name[name]: types[axis]
        for name, types in trace.claims.items()
        if axis in types and name in by_name
    }
    moves: dict[Node, tuple[Any, ...]] = {}
    for verb, over, src, dst, _op, before, after, line in trace.notes.moves:
        if over == axis and before is not None and after is not None and before is not after:
            moves[after] = (verb, src, dst, before, line)
            claims.setdefault(after, dst)
    roots = [root for root, _ in trace.notes.roots]
    shared = rows and any(claims.get(root) in ("P", "P(mean)") for root in roots)
    inputs = _inputs(group, axis, claims, shared, axis in world.data)
    return Graphs(
        axis=axis,
        nodes=[trace.nodes for trace in group],
        inputs=inputs,
        claims=claims,
        moves=moves,
        cotangents={by_name[f]: by_name[b] for f, b in trace.cotangents.items() if f in by_name},
        roots=roots,
        seeded={root for root, seed in trace.notes.roots if seed is not None},
        phases={by_name[name]: phase for name, phase in trace.phases.items()},
        places=[member.coordinate[axis] for member in group],
        size=world.mesh[axis],
    )


def _inputs(
    group: list[RankTrace], axis: str, claims: dict[Node, Type], rows: bool, data: bool
) -> dict[Node, Kind]:
    """The kinds of inputs: by claim, then mark, then as their values are, if there are any."""
    trace = group[0]
    placeholders = [node for node in trace.nodes if node.op == "placeholder"]
    kinds: dict[str, Kind] = {}
    inputs: dict[Node, Kind] = {}
    for i, (node, spec) in enumerate(zip(placeholders, trace.graph.inputs, strict=True)):
        mark = trace.marks.get(spec.name, {}).get(axis)
        if node in claims:
            kinds[spec.name] = kind_of(claims[node])
        elif mark is not None:
            kinds[spec.name] = kind_of(mark)
            claims[node] = mark
        elif spec.kind == "grad":
            kinds[spec.name] = kinds.get(spec.name.removesuffix(".grad"), UNKNOWN)
        else:
            kinds[spec.name] = _by_value([t.inputs[i] for t in group])
            if data and spec.kind == "arg" and kinds[spec.name] == UNKNOWN:
                kinds[spec.name] = VARYING
            if rows and spec.kind == "arg" and kinds[spec.name].tag == "V" and spec.shape:
                kinds[spec.name] = shard(0)
        inputs[node] = kinds[spec.name]
    return inputs


def _by_value(values: list[torch.Tensor]) -> Kind:
    if any(map(_compat.is_fake, values)):
        return UNKNOWN
    first = values[0]
    same = all(v.shape == first.shape and torch.equal(v, first) for v in values)
    return EQUAL if same else VARYING
