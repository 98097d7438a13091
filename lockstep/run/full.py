"""check="full": all witnesses on the call that is built, on simulated ranks, in this process.

The builder has its own arguments alone. So each simulated rank holds the same parameters, which is
right where all that is wide is a data axis, and a batch of its own that is made from this rank's.
Where that does not hold, the check says so instead of guessing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lockstep.capture.binding import Call, Step
from lockstep.capture.early import Early, putting
from lockstep.checker.check import conclude, witnesses
from lockstep.checker.finding import Report
from lockstep.checker.implied import differentiated
from lockstep.checker.simulation.gold import Gold
from lockstep.checker.simulation.twin import Twin
from lockstep.checker.world import World, capture_world
from lockstep.errors import CheckError, LockstepError, first_line
from lockstep.run.key import Bound
from lockstep.run.options import Options
from lockstep.spmd.affine import place_here
from lockstep.spmd.mesh import axis

MOST_RANKS = 8
MOST_ELEMENTS = (
    1 << 25
)  # of all inputs on all simulated ranks; each is held a few times, as float64
NO_TWIN = "the batches of the other ranks are not here; `lockstep check SCRIPT` has them"


def full(
    step: Step,
    call: Call,
    bound: Bound,
    options: Options,
    apart: Mapping[str, frozenset[str]],
    early: Sequence[Early] = (),
) -> Report:
    """Ask all witnesses but the one-rank twin about a call.

    Args:
        apart: parameter -> axes along which the ranks hold other values of it.
        early: ints of each rank; a simulated one has its own of them.

    Returns:
        The report; types explain in it, and do not decide.

    Raises:
        CheckError: the other ranks' arguments cannot be made from this one's, or are too many.
    """
    sizes = options.sizes
    why = _why_not(call, bound, sizes, options.data, apart)
    if why:
        raise _impossible(step.name, why)
    try:
        world = _captured(step, call, sizes, early)
    except (LockstepError, RuntimeError) as error:
        first = error.what if isinstance(error, LockstepError) else first_line(error)
        raise _impossible(step.name, f"it is not captured in a simulated world: {first}") from error
    report = _asked(world, options.data, options.reductions)
    if report.findings and options.pending:  # the last of several steps may reduce for all of them
        now = _asked(_captured(step, call, sizes, early), options.data, {})
        report = report if now.findings else now
    return report


def _asked(world: World, data: tuple[str, ...], pending: dict[str, str]) -> Report:
    report = Report()
    seen = witnesses(world, _no_twin, report, data, pending)
    if not seen.fault:
        seen.typing.findings = []  # what of them is definite was judged before
    return conclude(world, seen, report, pending)


def _captured(step: Step, call: Call, sizes: dict[str, int], early: Sequence[Early]) -> World:
    function: Any = step.function
    with contextlib.ExitStack() as numbers:

        def make(_mesh: Any) -> Any:
            """The call's arguments as one rank has them, until another one's are asked for."""
            numbers.close()
            place = place_here(map(axis, sizes))
            mine = numbers.enter_context(putting(early, lambda one: one.formula.at(place)))
            return call.arguments([mine.get(at, leaf) for at, leaf in enumerate(call.leaves)])

        world = capture_world(function, make, sizes)
        trains = any(spec.requires_grad for spec in world.ranks[0].graph.inputs)
        if trains and not world.ranks[0].notes.roots:
            world = capture_world(differentiated(function), make, sizes)
    for trace in world.ranks:  # what was accumulated before is no part of this call's derivative
        for at, spec in enumerate(trace.graph.inputs):
            if spec.kind == "grad":
                trace.inputs[at] = torch.zeros_like(trace.inputs[at])
    return world


def _no_twin(_gold: Gold) -> Twin:
    return Twin(why_not=NO_TWIN)


def _why_not(
    call: Call,
    bound: Bound,
    sizes: dict[str, int],
    data: tuple[str, ...],
    apart: Mapping[str, frozenset[str]],
) -> str:
    """Why the other ranks cannot be simulated from this one; "" where they can."""
    others = [axis for axis, size in sizes.items() if size > 1 and axis not in data]
    ranks = math.prod(sizes.values())
    tensors = [slot.tensor for slot in bound.state.slots]
    tensors += [leaf for leaf in call.leaves if isinstance(leaf, torch.Tensor)]
    count = sum(tensor.numel() for tensor in tensors) * ranks
    kinds = {tensor.device.type for tensor in tensors} - {"cpu"}
    if not sizes:
        return "it names no mesh"
    if others:
        return f"the shards that other ranks of {', '.join(others)} hold are not here"
    if apart:
        names = list(apart)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"other ranks hold other values of {', '.join(names[:3])}{more}"
    if kinds:
        return f"its tensors are on {', '.join(sorted(kinds))}"
    if ranks > MOST_RANKS or count > MOST_ELEMENTS:
        return f"{ranks} ranks with {count} values are more than {MOST_RANKS} with {MOST_ELEMENTS}"
    return ""


def _impossible(name: str, why: str) -> CheckError:
    return CheckError(
        f'check="full" of {name} cannot be made at its build: no artifact is made',
        got=why,
        want="a small mesh whose axes are all in data=, parameters that are copies, the CPU",
        fix=[
            "lockstep check SCRIPT --world-size 2 -- ARGS, of a small configuration",
            'ls.compile(check="types"), the default, judges what types are sure of',
        ],
    )
