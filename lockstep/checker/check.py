"""`ls.check`: all witnesses on one step, and the verdict."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from lockstep.checker import order, randomness, twin
from lockstep.checker.after import judge_after
from lockstep.checker.finding import Finding, Report
from lockstep.checker.gold import Gold
from lockstep.checker.implied import differentiated
from lockstep.checker.locate import locate
from lockstep.checker.placement import jitter, own_batches, place
from lockstep.checker.repair import repaired
from lockstep.checker.simulate import Divergent, Simulation
from lockstep.checker.types import Typing, infer
from lockstep.checker.verdict import Witnesses, choose, established
from lockstep.checker.world import World, arguments_of, capture_world
from lockstep.errors import UsageError


def check(
    step: Callable[..., Any] | torch.nn.Module,
    make: Callable[[Any], Any],
    *,
    mesh: Mapping[str, int],
    data: str | tuple[str, ...] = (),
    pending: Mapping[str, str] | None = None,
    repair_s: float = 10.0,
) -> Report:
    """Check a step's gradients on all ranks of a small mesh, in this process and on the CPU.

    Nothing communicates and nothing is compiled. The report says what was established: for the
    sizes that `make` gives, at one point, for the path that the step took there.

    Args:
        step: a function, with or without a `backward()` of its own; or a module, of which each rank
            gets a copy, called with what `make` returns.
        make: gets the rank's DeviceMesh and returns the step's arguments on that rank: a tuple, or
            (args, kwargs). Build shards from whole tensors, so that a run on one rank can be
            compared: `weight.chunk(mesh.size())[mesh.get_rank()]`.
        mesh: axis -> number of ranks, outermost first; 2 or 4 are enough.
        data: axes along which batches differ; ranks that were given the same one get their own.
        pending: axis -> "sum" or "mean": gradients that something after the step reduces, as DDP.
        repair_s: seconds in which repairs of a finding may be tried out; 0 tries none.

    Returns:
        The report; `report.ok`, and its text.

    Raises:
        CaptureError: the step cannot be captured, at its line.
        UsageError: an axis of `data` or `pending` that the mesh lacks.

    Example:
        >>> report = check(lambda x: (x * 2).sum(), lambda mesh: torch.ones(2), mesh={"tp": 2})
        >>> report.ok
        True
    """
    axes = (data,) if isinstance(data, str) else tuple(data)
    _known(mesh, axes, pending)
    step, make = _as_function(step, make)

    def examine() -> tuple[Report, Witnesses]:
        return _examined(step, make, mesh, axes, dict(pending or {}))

    report, seen = examine()
    if report.findings and repair_s > 0:
        with _timed(report, "repair"):
            report.findings = repaired(report, seen, examine, repair_s)
    return report


def _examined(
    step: Callable[..., Any],
    make: Callable[[Any], Any],
    mesh: Mapping[str, int],
    data: tuple[str, ...],
    pending: dict[str, str],
) -> tuple[Report, Witnesses]:
    report = Report()
    with _timed(report, "capture"):
        world = capture_world(step, make, mesh)
    if not world.ranks[0].notes.roots and _has_parameters(world):
        step = differentiated(step)
        with _timed(report, "capture"):
            world = capture_world(step, make, mesh)
    seen = witnesses(world, lambda gold: twin.judge(world, gold, step, make), report, data, pending)
    return conclude(world, seen, report, pending), seen


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


def conclude(world: World, seen: Witnesses, report: Report, pending: dict[str, str]) -> Report:
    """Fill a report with the verdict on what the witnesses said."""
    report.findings = choose(seen)
    report.established += established(world, seen, pending)
    report.undecided += seen.undecided
    report.unknown_ops = seen.typing.unknown
    return report


def witnesses(
    world: World,
    twin_of: Callable[[Gold], twin.Twin],
    report: Report,
    data: tuple[str, ...],
    pending: dict[str, str],
) -> Witnesses:
    """Ask every witness about a captured world; the order comes before anything else runs."""
    seen = Witnesses()
    with _timed(report, "order"):
        seen.order = order.judge(world)
    placement = place(world)
    seen.undecided += placement.undecided()
    jitter(world, placement)
    own_batches(world, data)
    with _timed(report, "types"):
        seen.typing = infer(world)
    try:
        sim = Simulation(world)
    except Divergent as apart:
        seen.apart = str(apart)
        return seen
    with _timed(report, "gold"):
        gold = Gold(sim, placement, pending)
        seen.gold, seen.unknown = gold, gold.problem
        _ask_gold(seen, gold, placement.findings)
    with _timed(report, "randomness"):
        seen.randomness, open_ = randomness.judge(sim, gold.seen, seen.typing.types)
        seen.undecided += open_
    with _timed(report, "twin"):
        seen.twin = twin_of(gold)
    seen.undecided = list(dict.fromkeys(seen.undecided))
    return seen


def _ask_gold(seen: Witnesses, gold: Gold, contradicted: list[Finding]) -> None:
    seen.loss = [*contradicted, *gold.meaning.findings]
    if gold.problem or not gold.world.ranks[0].notes.roots:
        return
    judged = gold.judge_parameters()
    seen.judged = judged
    if not seen.loss:
        seen.after, known = judge_after(gold, judged)
        seen.backward = locate(gold, known)


def _has_parameters(world: World) -> bool:
    return any(spec.requires_grad for spec in world.ranks[0].graph.inputs)


def _as_function(step: Any, make: Callable[[Any], Any]) -> tuple[Callable[..., Any], Any]:
    """A module as a function of itself and its arguments."""
    if not isinstance(step, torch.nn.Module):
        return step, make
    module = step

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    def with_module(mesh: Any) -> Any:
        args, kwargs = arguments_of(make(mesh))
        return (copy.deepcopy(module), *args), kwargs

    return call, with_module


def _known(
    mesh: Mapping[str, int], data: tuple[str, ...], pending: Mapping[str, str] | None
) -> None:
    for name in (*data, *(pending or {})):
        if name not in mesh:
            raise UsageError(f"ls.check: there is no mesh axis {name}", want=f"one of {list(mesh)}")
    for name, way in (pending or {}).items():
        if way not in ("sum", "mean"):
            raise UsageError(f"ls.check: pending {name}={way!r}", want='"sum" or "mean"')
    if not mesh or any(size < 1 for size in mesh.values()):
        raise UsageError(f"ls.check: mesh={dict(mesh)}", want='ranks by axis, such as {"tp": 2}')


@contextmanager
def _timed(report: Report, part: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        spent = time.perf_counter() - start
        report.seconds[part] = round(report.seconds.get(part, 0.0) + spent, 4)


__all__ = ["Typing", "check", "witnesses"]
