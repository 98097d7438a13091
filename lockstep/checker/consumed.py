"""What is read in the end: the loss that `backward()` starts from, and the gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from lockstep.checker.inference.flow import Flow
from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules.context import Fault
from lockstep.spmd.types import R, Type


@dataclass(frozen=True)
class Gradient:
    """One gradient that an optimizer reads.

    Args:
        name: the parameter's.
        parameter: its placeholder.
        node: what is read; `raw` what the backward gave, where that is known.
        wanted: the parameter's type; None where nothing says it.
    """

    name: str
    parameter: Node
    node: Node
    raw: Node | None
    wanted: Type | None


def judge_loss(flow: Flow, ties: dict[Node, Type]) -> list[Fault]:
    """Object to a loss that counts N times, or that nothing says how to add up."""
    faults = []
    for root in flow.graphs.roots:
        kind: Any = flow.kinds.get(root)
        if not isinstance(kind, Kind) or flow.graphs.phases.get(root) != "forward":
            continue
        axis = flow.graphs.axis
        if kind.tag in "VS" and root not in flow.graphs.seeded:
            faults.append(
                Fault(
                    "LS513",
                    f"the loss differs on each rank of {axis}, and nothing says how it adds up",
                    "backward() starts from 1 on every rank: is it the sum of the ranks' losses, "
                    "or their mean?",
                    root,
                    root,
                    None,
                    repr(kind),
                    "I, P or P(mean)",
                )
            )
        elif kind.tag == "E" and ties.get(root) is R:
            faults.append(
                Fault(
                    "LS513",
                    "the loss is replicated: every rank starts a gradient of its own from it",
                    "their sum is as many times too large",
                    root,
                    root,
                    None,
                    "R",
                    "I, P or P(mean)",
                )
            )
    return faults


def judge_gradients(flow: Flow, gradients: list[Gradient]) -> list[Fault]:
    """Object to gradients that an optimizer must not read as they are."""
    faults = []
    for gradient in gradients:
        kind: Any = flow.kinds.get(gradient.node)
        if isinstance(kind, Kind):
            fault = _judge(flow, gradient, kind)
            if fault is not None:
                faults.append(fault)
    return faults


def _judge(flow: Flow, gradient: Gradient, kind: Kind) -> Fault | None:
    wanted, axis = gradient.wanted, flow.graphs.axis
    name = f"{gradient.name}.grad"
    sharded = wanted is not None and wanted.kind in "SV"
    want = "the whole gradient, R or I" if not sharded else str(wanted)
    if kind.tag == "P":
        return _fault(
            gradient,
            f"{name} is still partial on {axis} when the optimizer reads it",
            "each rank would step by its own term, and the ranks' copies drift apart",
            kind,
            want,
        )
    if kind.note == "echo" or kind.tag in "?Z":
        return None
    if kind.tag == "S" and sharded and wanted is not None and wanted.kind == "S":
        if kind.before == 1 and kind.dim != wanted.dim:
            return _fault(
                gradient,
                f"{name} is a shard of dimension {kind.dim}, the parameter of {wanted.dim}",
                "each rank would step by another part than it holds",
                kind,
                want,
            )
    if kind.tag in "SV" and not sharded and wanted is not None:
        return _fault(
            gradient,
            f"{name} differs on each rank of {axis} when the optimizer reads it",
            "the parameter is the same on every rank; its copies would drift apart",
            kind,
            want,
        )
    if kind.power and kind.tag == "E" and not sharded:
        return _fault(
            gradient,
            f"{name} is summed over {axis} where the loss is a mean",
            "the loss is the mean of what the ranks hold: the gradient is as many times too large",
            kind,
            "the mean over the ranks",
            "LS516",
        )
    return None


def _fault(
    gradient: Gradient, what: str, why: str, kind: Kind, want: str, code: str = "LS514"
) -> Fault:
    got = repr(kind) if kind.tag != "E" else "the sum over the ranks"
    at = gradient.raw or gradient.node  # charged to the line that reads the parameter
    return Fault(code, what, why, at, gradient.parameter, None, got, want)
