"""The type, and the gradient's type, of every value that a script's steps compute on one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.fx import Node

from lockstep.checker.inference.rules.registry import op_name
from lockstep.checker.inference.types import Typing, infer
from lockstep.checker.placement import jitter, own_batches, place
from lockstep.checker.source import bare, full_path, line_of, text_of
from lockstep.checker.world import World
from lockstep.errors import UsageError
from lockstep.report.check_world import Job, importing_beside, tapes, world_of
from lockstep.spmd.types import I, R, TensorType, Type


@dataclass(frozen=True)
class Explained:
    """One value of a line.

    Args:
        step: the step that computes it.
        op: the operator, or the input's name where the line reads it.
        value, gradient: as `f32[4, 8] {tp: R}`; a gradient is "" where there is none.
    """

    step: str
    op: str
    value: str
    gradient: str


def explain(job: Job, file: Path, line: int) -> list[Explained]:
    """Run a script's set-up on real processes, and type the values of one line.

    Args:
        file, line: the user's line; a file of the script's own or of a package.

    Returns:
        The values in the order in which they are computed, each once.

    Raises:
        UsageError: no step was captured, or none computes anything on that line.
    """
    with importing_beside(job.script):
        found, lines = [], set()
        for name, held in tapes(job)[1].parts.items():
            refused = next((part.refused for part, _ in held if part.refused), "")
            if refused:
                raise UsageError(f"{name} was not captured", got=refused)
            world = world_of(held)
            lines |= {line_of(node) for node in world.ranks[0].nodes} - {""}
            found += list(_values(world, name, held[0][0].data, file.resolve(), line))
        if not found:
            raise _nothing_there(file, line, lines)
    return list(dict.fromkeys(found))


def as_text(file: Path, line: int, found: list[Explained]) -> str:
    """The line itself, then a row for each value."""
    source = bare(text_of(f"{file.resolve()}:{line}"))
    several = len({row.step for row in found}) > 1
    names = [f"{row.step}: {row.op}" if several else row.op for row in found]
    wide = max(map(len, names)), max(len(row.value) for row in found)
    rows = [
        f"  {name:<{wide[0]}}  {row.value:<{wide[1]}}  gradient {row.gradient or 'none'}"
        for name, row in zip(names, found, strict=True)
    ]
    return "\n".join([f"{file}:{line}  {source}", *rows])


def _values(
    world: World, step: str, data: tuple[str, ...], file: Path, line: int
) -> Iterator[Explained]:
    jitter(world, place(world))
    own_batches(world, tuple(axis for axis in data if axis in world.mesh))
    typing = infer(world)
    trace = world.ranks[0]
    nodes = {node.name: node for node in trace.nodes}
    names = {
        node: spec.name
        for node, spec in zip(
            trace.graph.gm.graph.find_nodes(op="placeholder"), trace.graph.inputs, strict=True
        )
    }
    shown: set[Node] = set()
    for here in trace.nodes:
        if trace.phases[here.name] != "forward" or not _is_on(line_of(here), file, line):
            continue
        for node in [n for n in here.all_input_nodes if n in names] + [here]:
            value = node.meta.get("val")
            if node in shown or not isinstance(value, torch.Tensor):
                continue
            shown.add(node)
            back = trace.cotangents.get(node.name)
            gradient = _gradient(world, typing, node, nodes[back]) if back in nodes else ""
            op = names.get(node) or op_name(node.target).removeprefix("_c10d_functional.")
            yield Explained(step, op, _typed(world, typing.types, node), gradient)


def _gradient(world: World, typing: Typing, node: Node, back: Node) -> str:
    """The gradient's type; one that is equal on all ranks is whole where its value is I."""
    value, found = typing.types.get(node.name, {}), dict(typing.types.get(back.name, {}))
    found |= {axis: I for axis, kind in found.items() if kind is R and value.get(axis) is I}
    return _typed(world, {back.name: found}, back)


def _typed(world: World, types: dict[str, dict[str, Type]], node: Node) -> str:
    known, value = types.get(node.name, {}), node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return "?"
    shape = str(TensorType.of(value, _fitting(known, value))).partition(" {")[0]
    said = ", ".join(f"{axis}: {known.get(axis, '?')}" for axis in world.wide)
    return f"{shape} {{{said}}}"


def _fitting(known: dict[str, Type], value: torch.Tensor) -> dict[str, Type]:
    return {a: kind for a, kind in known.items() if kind.dim is None or kind.dim < value.dim()}


def _is_on(line: str, file: Path, number: int) -> bool:
    short, _, found = line.rpartition(":")
    return found == str(number) and Path(full_path(short)).resolve() == file


def _nothing_there(file: Path, line: int, lines: set[str]) -> UsageError:
    numbers = sorted(
        int(text.rpartition(":")[2])
        for text in lines
        if Path(full_path(text.rpartition(":")[0])).resolve() == file.resolve()
    )
    near = sorted(numbers, key=lambda number: abs(number - line))[:6]
    return UsageError(
        f"no step computes anything on {file}:{line}",
        got=bare(text_of(f"{file.resolve()}:{line}")) or "an empty line",
        want=f"a line such as {', '.join(map(str, sorted(near)))}" if near else "a line of a step",
    )
