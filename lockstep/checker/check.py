"""`ls.check`: all witnesses on one step, and the verdict."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import FunctionType, MethodType
from typing import Any, Literal

import torch

from lockstep import _compat
from lockstep.checker import order, randomness
from lockstep.checker.after import judge_after
from lockstep.checker.apart import judge_apart
from lockstep.checker.asked import data_of, fitting, mesh_of, pending_of, refuse_seconds
from lockstep.checker.by_types import judge_by_types
from lockstep.checker.captured import captured, reduced_later
from lockstep.checker.claimed import broken
from lockstep.checker.finding import MOST_LINES, Finding, Report
from lockstep.checker.inference.types import Typing, infer
from lockstep.checker.lines import source_of
from lockstep.checker.live.meeting import Parted
from lockstep.checker.placement import jitter, own_batches, place
from lockstep.checker.repair.edits import Edit, applied
from lockstep.checker.repair.repair import repaired
from lockstep.checker.simulation import twin
from lockstep.checker.simulation.gold import AGAIN, Gold
from lockstep.checker.simulation.locate import locate
from lockstep.checker.simulation.roles import message_axes
from lockstep.checker.simulation.simulate import Divergent, Failed, Simulation
from lockstep.checker.updates import drifted
from lockstep.checker.verdict import Witnesses, choose, clear, established
from lockstep.checker.world import World, arguments_of
from lockstep.errors import UsageError, first_line
from lockstep.spmd.asked import refuse_deferred


def check(
    step: Callable[..., Any] | torch.nn.Module,
    make: Callable[[Any], Any],
    *,
    mesh: Mapping[str, int],
    data: str | tuple[str, ...] | None = (),
    pending: Mapping[str, str] | None = None,
    repair_s: float = 10.0,
    witnesses: Literal["all", "types"] = "all",
) -> Report:
    """Check a step's gradients on all ranks of a small mesh, in this process and on the CPU.

    Nothing communicates and nothing is compiled. The report says what was established: for the
    sizes that `make` gives, at one point, for the path that the step took there. A step that cannot
    be captured runs live instead, op by op, one rank after the other: `make` and the step are then
    called several times for each.

    Args:
        step: a function, with or without a `backward()` of its own; or a module, of which each rank
            gets a copy, called with what `make` returns.
        make: gets the rank's DeviceMesh and returns the step's arguments on that rank: a tuple, or
            (args, kwargs); anything else, a list too, is one argument. Build shards from whole
            tensors, so that a run on one rank can be compared:
            `weight.chunk(mesh.size())[mesh.get_rank()]`.
        mesh: axis -> number of ranks, outermost first; 2 or 4 are enough.
        data: axes along which batches differ; ranks that were given the same one get their own.
        pending: axis -> "ddp mean", "ddp sum", "mean" or "sum": how something after the step
            reduces the gradients, as DDP.
        repair_s: seconds in which repairs of a finding may be tried out; 0 tries none.
        witnesses: "types" is for sizes that no machine can compute: `make` then makes tensors that
            have a shape and no memory, the step is captured at the origin and its neighbour along
            each axis alone, and the types decide. Say how inputs lie, with `ls.type_parameters`,
            `ls.typed` and `data`: no value tells.

    Returns:
        The report; `report.ok`, and its text.

    Raises:
        CaptureError: the step can neither be captured nor run live, at its line.
        UsageError: an argument that cannot be meant; what `make` returns does not fit the step.

    Example:
        >>> report = check(lambda x: (x * 2).sum(), lambda mesh: torch.ones(2), mesh={"tp": 2})
        >>> report.ok
        True
    """
    if witnesses not in ("all", "types"):
        raise UsageError(f"ls.check: witnesses={witnesses!r}", want='"all" or "types"')
    mesh = mesh_of(mesh, witnesses)
    axes, ways = data_of(data, mesh), pending_of(pending, mesh)
    refuse_seconds(repair_s)
    step, make = _as_function(step, make)
    if witnesses == "types":
        return _by_types(step, make, mesh, axes, ways)

    def examine(edits: Sequence[Edit] = ()) -> tuple[Report, Witnesses]:
        with applied(*edits), _compat.quiet_fake_errors() if edits else nullcontext():
            return _examined(step, make, mesh, axes, ways)

    report, seen = examine()
    if report.findings and repair_s > 0:
        with report.timed("repair"):
            report.findings = repaired(report, seen, examine, repair_s)
    return report


def _by_types(
    step: Callable[..., Any],
    make: Callable[[Any], Any],
    mesh: Mapping[str, int],
    data: tuple[str, ...],
    pending: dict[str, str],
) -> Report:
    seconds = Report()
    with seconds.timed("capture"):
        found = captured(step, make, mesh, by_shape=True)
    report = judge_by_types(found.world, data, pending)
    later = reduced_later(found, data, pending)
    if report.findings and later != pending:
        report = judge_by_types(found.world, data, later)
    report.seconds = {**seconds.seconds, **report.seconds}
    return report


def _examined(
    step: Callable[..., Any],
    make: Callable[[Any], Any],
    mesh: Mapping[str, int],
    data: tuple[str, ...],
    pending: dict[str, str],
) -> tuple[Report, Witnesses]:
    report = Report()
    try:
        with report.timed("capture"):
            found = captured(step, make, mesh)
    except Parted as parted:
        return parted_report(parted, report)
    report.live, world = found.live, found.world

    def twin_of(gold: Gold) -> twin.Twin:
        return twin.judge(world, gold, found.step, make, found.world_of)

    def alone() -> World:
        with _compat.quiet_fake_errors():
            return found.world_of(found.step, make, dict.fromkeys(mesh, 1))

    seen = witnesses(world, twin_of, report, data, pending, alone)
    conclude(world, seen, report, pending)
    later = reduced_later(found, data, pending)
    if report.findings and later != pending:  # a module, whose gradients someone else adds up
        other, seen_then = _examined(step, make, mesh, data, later)
        if other.ok:
            return other, seen_then
    return report, seen


def judged(
    world: World,
    twin_of: Callable[[Gold], twin.Twin],
    report: Report,
    data: tuple[str, ...],
    pending: dict[str, str],
) -> Report:
    """Fill a report with what all witnesses say of a captured world, and the verdict.

    Args:
        world: as captured, not jittered; its input values are changed.
        twin_of: compares with the same step on one rank.
        data, pending: as for `check`.
    """
    return conclude(world, witnesses(world, twin_of, report, data, pending), report, pending)


def parted_report(parted: Parted, report: Report) -> tuple[Report, Witnesses]:
    """The report of a step that ran live, and whose ranks' collectives did not meet."""
    report.live = parted.live
    report.findings = [dataclasses.replace(parted.finding, live=True)]
    report.established.append("gradients: not judged, the step does not end")
    return report, Witnesses(order=report.findings)


def conclude(world: World, seen: Witnesses, report: Report, pending: dict[str, str]) -> Report:
    """Fill a report with the verdict on what the witnesses said."""
    live = bool(report.live)
    report.findings = [dataclasses.replace(found, live=live) for found in choose(seen)]
    report.established += established(world, seen, pending)
    report.undecided += seen.undecided
    report.unknown_ops, report.nodes = seen.typing.unknown, seen.typing.nodes
    report.untyped = Counter(seen.typing.untyped.values())
    return report


def witnesses(
    world: World,
    twin_of: Callable[[Gold], twin.Twin],
    report: Report,
    data: tuple[str, ...],
    pending: dict[str, str],
    one_rank: Callable[[], World] | None = None,
) -> Witnesses:
    """Ask every witness about a captured world; the order comes before anything else runs.

    Args:
        one_rank: captures the same step on a mesh of ones, for programs that differ by rank.
    """
    seen = Witnesses()
    with report.timed("order"):
        seen.order = order.judge(world)
    try:
        sim = Simulation(world)
    except Divergent as apart:
        seen.apart = f"the ranks' programs differ: {apart}"
    if not seen.apart and message_axes(world):
        seen.apart = "the ranks send each other messages"
    if seen.apart:
        _ask_apart(seen, world, report, data, one_rank)
        return seen
    placement = place(world)
    seen.undecided += placement.undecided()
    jitter(world, placement)
    own_batches(world, data)
    with report.timed("types"):
        seen.typing = infer(world, frozenset(pending))
    with report.timed("gold"):
        try:
            gold = Gold(sim, placement, pending)
        except Failed as failed:
            seen.failed = [_failure(failed)]
            return seen
        seen.gold, seen.unknown = gold, gold.problem
        _ask_gold(seen, gold, placement.findings)
    with report.timed("randomness"):
        seen.randomness, open_ = randomness.judge(sim, gold.seen, seen.typing.types)
        seen.undecided += open_
    with report.timed("twin"):
        seen.twin = twin_of(gold)
    clear(seen)
    seen.undecided = list(dict.fromkeys(seen.undecided))
    return seen


def _ask_apart(
    seen: Witnesses,
    world: World,
    report: Report,
    data: tuple[str, ...],
    one_rank: Callable[[], World] | None,
) -> None:
    """Of programs that have no rows in common: messages, claims, and what one rank computes."""
    seen.typing = infer(world)
    if one_rank is None or seen.order:
        return
    with report.timed("twin"):
        seen.order, seen.claims, seen.twin = judge_apart(world, one_rank, data)


def _failure(failed: Failed) -> Finding:
    """What is told of a step that does not end, with the shapes that its operator was given."""
    told = [", ".join(map(str, shapes)) for shapes in failed.shapes]
    got = [f"rank {rank}: {shapes}" for rank, shapes in enumerate(told[:MOST_LINES])]
    if len(set(told)) == 1:
        got = [f"all ranks: {told[0]}"]
    return Finding(
        "LS537",
        f"{failed.op} ends with an error: {first_line(failed.error)}",
        line=failed.line,
        source=source_of(failed.line),
        got="tensors of " + "; ".join(got),
        why="what it is given does not fit, as where a collective that exchanges or gathers rows "
        "before it is missing: the job would end here.",
        witness="gold",
    )


def _ask_gold(seen: Witnesses, gold: Gold, contradicted: list[Finding]) -> None:
    seen.loss = [*contradicted, *gold.meaning.findings]
    seen.claims = broken(gold)
    if gold.problem == AGAIN:
        seen.after = drifted(gold)
    if gold.problem or not gold.world.ranks[0].notes.roots:
        return
    judged = gold.judge_parameters()
    seen.judged = judged
    if any(judgement.returned for judgement in judged.values()):
        seen.undecided.append(
            "gradients: what the step does with them is its own, it sets no .grad"
        )
    if not seen.loss:
        seen.after, known = judge_after(gold, judged)
        seen.backward = locate(gold, known)


def _as_function(step: Any, make: Callable[[Any], Any]) -> tuple[Callable[..., Any], Any]:
    """A module as a function of itself and its arguments; another callable as a function."""
    if not callable(step) or not callable(make):
        what = "step" if not callable(step) else "make"
        raise UsageError(
            f"ls.check: {what} is a {type(step if what == 'step' else make).__name__}",
            want="ls.check(step, make, mesh=...): the step, and what makes its arguments on a rank",
        )
    plain = inspect.unwrap(step, stop=_is_itself)
    refuse_deferred(plain, "ls.check: the step")
    make = fitting(plain, make)
    if not isinstance(step, torch.nn.Module):
        return _plain_function(plain), make
    module = step

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    def with_module(mesh: Any) -> Any:
        args, kwargs = arguments_of(make(mesh))
        return (copy.deepcopy(module), *args), kwargs

    return call, with_module


def _is_itself(step: Any) -> bool:
    """Whether a callable is what the user wrote, a decorator's part too, and no compiled form."""
    return isinstance(step, (FunctionType, MethodType)) and not _compat.is_compiled(step)


def _plain_function(step: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiled step was made from; of a partial and other objects, a function that calls."""
    if isinstance(step, (FunctionType, MethodType)):
        return step

    def call(*args: Any, **kwargs: Any) -> Any:
        return step(*args, **kwargs)

    call.__qualname__ = getattr(step, "__qualname__", type(step).__qualname__)
    return call


__all__ = ["Typing", "check", "witnesses"]
