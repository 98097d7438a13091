"""What a step does to an input, and no program does to the caller's tensor: refused."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lockstep import _compat
from lockstep.capture.binding import Step
from lockstep.capture.graph import InputSpec
from lockstep.capture.refusal import refuse
from lockstep.capture.source import line_that_mentions
from lockstep.errors import CaptureError


def refuse_lost(step: Step, inputs: Iterable[tuple[InputSpec, torch.Tensor, int]]) -> None:
    """Look at the stand-ins once the step has returned.

    Args:
        step: its line is named; the operation's is no longer known.
        inputs: each with its stand-in, and with the storage that this had before the trace.

    Raises:
        CaptureError: the step gave one other memory, or left a gradient in an argument.
    """
    for spec, fake, storage in inputs:
        where = line_that_mentions(step.plain, spec.name.partition(".")[0].partition("[")[0])
        if _compat.storage_identity(fake) != storage:
            refuse(_moved(spec, where), about=fake)
        if spec.kind == "arg" and fake.grad is not None:
            refuse(_left(spec, where), about=fake)


def _moved(spec: InputSpec, where: str | None) -> CaptureError:
    return CaptureError(
        f"the step gives {spec.name} other memory: by `.data =`, set_ or resize_",
        where=where,
        why="a program writes into the memory that it is given",
        fix=f"write in place: with torch.no_grad(): {spec.name}.copy_(value)",
    )


def _left(spec: InputSpec, where: str | None) -> CaptureError:
    return CaptureError(
        f"the step leaves a gradient in its argument {spec.name}",
        where=where,
        why="only the gradients of a module's parameters are handed back",
        fix=[
            "hold it as a parameter of a module, and pass the module",
            "return torch.autograd.grad(loss, [...]) instead of calling backward()",
        ],
    )
