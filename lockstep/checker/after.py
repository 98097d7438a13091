"""What follows the backward: reductions, accumulation, clipping, and what the optimizer takes.

A gradient that backward() left right, whole or partial, may be spoilt on its way to the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from lockstep.checker.finding import Finding
from lockstep.checker.lines import source_of
from lockstep.checker.phrases import unreduced
from lockstep.checker.simulation.compare import group_sum, same, same_along
from lockstep.checker.simulation.gold import Gold, Judged
from lockstep.checker.updates import drifting


def judge_after(gold: Gold, judged: dict[str, Judged]) -> tuple[list[Finding], set[str]]:
    """Findings for gradients that were right after backward() and are wrong at the end.

    Returns:
        One finding for each kind, since parameters with the same fault share it; and their names.
    """
    names: set[str] = set()
    found: dict[tuple[str, str, str | None], Finding] = {}
    count: dict[tuple[str, str, str | None], int] = {}
    for name, judgement in judged.items():
        if not judgement.wrong and not judgement.updated:
            continue
        own = judgement.updated
        finding = drifting(gold, name) if own else _judge_one(gold, name, judgement)
        if finding is not None:
            names.add(name)
            alike = finding.line if finding.code != "LS550" else ""
            key = (finding.code, alike, finding.axis)
            found.setdefault(key, finding)
            count[key] = count.get(key, 0) + 1
    more = {key: f"; {n - 1} more of the same kind" for key, n in count.items() if n > 1}
    return [replace(f, what=f.what + more.get(key, "")) for key, f in found.items()], names


def _judge_one(gold: Gold, name: str, judgement: Judged) -> Finding | None:
    raw = _raw(gold, name)
    if raw is None or _kinds(gold, name, raw) is None:
        return None  # the backward's own fault
    if judgement.clipped:
        early = _reduced_later(gold, name, raw)
        return early if early is not None else _own_scale(gold, name, judgement)
    if judgement.partial_on is not None:
        said = gold.placement.types.get(name, {}).get(judgement.partial_on)
        meant = said is not None and said.kind == "R"  # reducing its gradient is the step's job
        data = gold.meaning.ways[judgement.partial_on] != "same"
        if not (meant or data):
            return None
        last = [line for line in map(gold.sim.line, _way(gold, name)) if line][-1:]
        return replace(unreduced(gold, name, judgement.partial_on), related=tuple(last))
    return _wrong_step(gold, name, judgement)


def _raw(gold: Gold, name: str) -> list[torch.Tensor] | None:
    """A parameter's gradient as backward() left it; of several backwards their sum."""
    node = gold.sim.rows[gold.parameters[name]][0]
    parts = gold.world.ranks[0].notes.cotangents.get(node)
    if not parts:
        return None
    held = [gold.seen[gold.sim.at[0][part]] for part in parts]
    return [sum(values[1:], values[0]) for values in zip(*held, strict=True)]


def _kinds(gold: Gold, name: str, held: list[torch.Tensor]) -> dict[str, str] | None:
    """As `Gold.kinds`, but a partial differs across ranks here: equal and too small is wrong."""
    if gold.parameters[name] not in gold.gold:
        return None
    kinds = gold.kinds(gold.parameters[name], held, gold.placement.tied[name])
    for axis, kind in (kinds or {}).items():
        if kind == "partial" and same_along(gold.world, held, axis):
            return None
    return kinds


def _way(gold: Gold, name: str) -> list[int]:
    """The rows from the raw gradient to the final one, in order."""
    node = gold.world.ranks[0].grads[name]
    final = gold.sim.index[node] if node is not None else None
    todo, done = [final] if final is not None else [], set()
    while todo:
        row = todo.pop()
        if row in done or (row != final and gold.sim.phase[row] != "after"):
            continue  # the final one may be the raw one, written to in place
        done.add(row)
        todo += gold.sim.sources(row)
    return sorted(done)


def _own_scale(gold: Gold, name: str, judgement: Judged) -> Finding:
    """A number that scales gradients and is another on each rank, as a norm of the own shards."""
    rows = [row for row in _way(gold, name) if _is_scalar(gold, row)]
    differing = [row for row in rows if _axes(gold, row)]
    roots = [row for row in differing if not _is_part(gold, row)]
    first = next((row for row in differing if _name(gold, row) in _ROOTS), None)
    row = first if first is not None else next(iter([*roots, *differing]), None)
    line = gold.sim.line(row) if row is not None else ""
    axes = _axes(gold, row) if row is not None else []
    axis = axes[0] if axes else None
    fix = None
    if axis is not None:
        fix = f"add up what each rank holds of it over {axis} before this line: "
        fix += f'all_reduce(..., "{axis}", src=P, dst=I)'
    return Finding(
        "LS552",
        "the gradients are scaled by a number that differs between ranks",
        line=line,
        source=source_of(line),
        axis=axis,
        got="V",
        want="I",
        why=f"{judgement.wrong}; replicas drift apart",
        fix=fix,
        witness="after",
    )


def _reduced_later(gold: Gold, name: str, raw: list[torch.Tensor]) -> Finding | None:
    """Gradients that are still parts when something scales them by a number of their own."""
    kinds = _kinds(gold, name, raw) or {}
    axis = next((axis for axis, kind in kinds.items() if kind == "partial"), None)
    way = _way(gold, name)
    scaled = [r for r in way if not _is_scalar(gold, r) and _scales(gold, r)]
    reduced = [r for r in way if "all_reduce" in str(gold.sim.rows[r][0].target)]
    if axis is None or not scaled or (reduced and reduced[0] < scaled[0]):
        return None
    line = gold.sim.line(scaled[0])
    mean = '"mean"' if gold.meaning.ways.get(axis) == "mean" else '"sum"'
    return Finding(
        "LS553",
        f"the gradients are scaled before they are reduced over {axis}",
        line=line,
        source=source_of(line),
        axis=axis,
        got="P, scaled by another number on each rank",
        want="the whole gradient",
        why="the sum of parts that were scaled apart is no multiple of the gradient",
        fix=f"ls.reduce_grads({name.split('.')[0]}, {axis}={mean}) before this line",
        witness="after",
    )


def _scales(gold: Gold, row: int) -> bool:
    """Whether a row multiplies by a number that differs between ranks."""
    name = _name(gold, row)
    if not name.startswith(("mul", "div", "_foreach_mul", "_foreach_div")):
        return False
    numbers = [r for r in gold.sim.sources(row) if _is_scalar(gold, r)]
    return any(_axes(gold, number) for number in numbers)


_ROOTS = ("sqrt", "rsqrt", "pow", "sqrt_")


def _name(gold: Gold, row: int) -> str:
    target = gold.sim.rows[row][0].target
    return str(target).removeprefix("aten.").split(".")[0]


def _is_part(gold: Gold, row: int) -> bool:
    """Whether a number is a part of a sum: what comes of it is reduced later on."""
    return any("all_reduce" in str(user.target) for user in gold.sim.rows[row][0].users)


def _is_scalar(gold: Gold, row: int) -> bool:
    value = gold.seen[row][0]
    return isinstance(value, torch.Tensor) and value.numel() == 1


def _axes(gold: Gold, row: int) -> list[str]:
    return [a for a in gold.world.wide if not same_along(gold.world, gold.seen[row], a)]


def _wrong_step(gold: Gold, name: str, judgement: Judged) -> Finding:
    """The first line after which the gradient is neither whole, partial nor own."""
    tied = gold.placement.tied[name]
    shape = gold.seen[gold.parameters[name]][0].shape
    way = [r for r in _way(gold, name) if getattr(gold.seen[r][0], "shape", None) == shape]
    spoilt = next((row for row in way if not _plausible(gold, name, row, tied)), None)
    again = _summed_again(gold, name)
    if again is not None:
        return again
    row = spoilt if spoilt is not None else (way[-1] if way else None)
    line = gold.sim.line(row) if row is not None else ""
    means = [axis for axis, way_ in gold.meaning.ways.items() if way_ == "mean"]
    scaled = "times the true one" in judgement.wrong
    fix = None
    if scaled and means:
        fix = f'ls.reduce_grads(model, {means[0]}="mean"): the loss is a mean over {means[0]}'
    return Finding(
        "LS551",
        f"the gradient of {name} is right after backward(), and wrong when the optimizer takes it",
        line=line,
        source=source_of(line),
        axis=means[0] if scaled and means else None,
        got=f"a gradient that is {judgement.wrong}",
        want="the derivative of the job's loss, each part counted once",
        why="what happens to it between is not a reduction of its parts",
        fix=fix,
        witness="after",
    )


def _summed_again(gold: Gold, name: str) -> Finding | None:
    """A sum over ranks of what holds such a sum already, beside what was added since."""
    node = gold.world.ranks[0].grads[name]
    parameter = gold.sim.rows[gold.parameters[name]][0]
    if len(gold.world.ranks[0].notes.cotangents.get(parameter, ())) < 2:
        return None
    behind = _behind(gold, gold.sim.index[node]) if node is not None else set()
    sums = [row for row in behind if _is_sum(gold, row)]
    for row in sorted(sums):
        axis = _words(gold, row)[-1]
        before = [r for r in _behind(gold, row) if r < row and _is_sum(gold, r)]
        if axis not in gold.world.wide or all(_words(gold, r)[-1] != axis for r in before):
            continue
        line = gold.sim.line(row)
        return Finding(
            "LS551",
            f"the gradient of {name} is summed over {axis} again, with what was added since",
            line=line,
            source=source_of(line),
            axis=axis,
            got=f"a sum over {axis} of what holds such a sum already",
            want="each backward()'s part counted once",
            why="gradients of several backward()s add up, and so do the sums that are in them",
            fix="reduce once, after the last backward()",
            witness="after",
        )
    return None


def _behind(gold: Gold, row: int) -> set[int]:
    """The rows of gradients that a row is made of, with what was written into them before it."""
    found, todo = set(), [row]
    while todo:
        here = todo.pop()
        if here in found or gold.sim.phase[here] in ("input", "forward"):
            continue
        found.add(here)
        todo += gold.sim.sources(here)
        written = [gold.sim.at[0][write.args[1]] for write in _writes(gold, here)]
        todo += [source for source in written if source <= row]
    return found


def _writes(gold: Gold, row: int) -> Iterator[Any]:
    for user in gold.sim.rows[row][0].users:
        for write in user.users if _name(gold, gold.sim.at[0][user]) == "alias" else ():
            if str(write.target).startswith("aten.copy_") and write.args[0] is user:
                yield write


def _is_sum(gold: Gold, row: int) -> bool:
    words = _words(gold, row)
    reduces = "all_reduce" in str(gold.sim.rows[row][0].target) and "sum" in words
    return reduces and gold.sim.phase[row] == "after"


def _words(gold: Gold, row: int) -> list[str]:
    return [arg for arg in gold.sim.rows[row][0].args if isinstance(arg, str)] or [""]


def _plausible(gold: Gold, name: str, row: int, tied: list[str]) -> bool:
    """Whether a row is the gradient on its way: as judged, or of a mean scaled already."""
    if _kinds(gold, name, gold.seen[row]) is not None:
        return True
    held, true = gold.seen[row], gold.true_final(name, tied)
    for axis in [None, *tied]:
        summed = held if axis is None else group_sum(gold.world, held, [axis])
        if all(same(a, b) for a, b in zip(summed, true, strict=True)):
            return True
    return False
