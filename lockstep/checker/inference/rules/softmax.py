"""Softmax and the losses that read it."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind
from lockstep.checker.inference.rules.context import Context
from lockstep.checker.inference.rules.mixing import nonlinear, scaled
from lockstep.checker.inference.rules.norms import whole_axis
from lockstep.checker.inference.rules.registry import rule


@rule("_softmax", "_log_softmax", "softmax", "log_softmax", "_safe_softmax", linear=False)
def _softmax(ctx: Context) -> Kind:
    first = ctx.operands[0]
    if first.kind.tag == "S" and first.kind.dim == ctx["dim"] % first.ndim:
        whole_axis(ctx, first)
        return VARYING
    return nonlinear(ctx, [first])


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(ctx: Context) -> Kind:
    made = scaled(ctx, ctx.operands, linear_in=0)
    lost = made.tag == "S" and made.dim == ctx["dim"] % ctx.operands[0].ndim
    return VARYING if lost else made


@rule("nll_loss_forward", "nll_loss2d_forward", linear=False)
def _nll(ctx: Context) -> list[Kind]:
    """The mean over shards of rows is no mean of means where the ranks count different rows."""
    logits, target = ctx.operands[0], ctx.operands[1]
    mode = ctx["reduction"]
    if any(o.kind.tag in "?P" for o in ctx.operands):
        partial = any(o.kind.tag == "P" for o in ctx.operands)
        return [nonlinear(ctx) if partial else UNKNOWN] * 2
    if all(o.kind.same for o in ctx.operands):
        return [EQUAL, EQUAL]
    weights = ctx.operands[2:]
    rowwise = logits.kind.tag == target.kind.tag == "S" and logits.kind.dim == target.kind.dim == 0
    if not rowwise or any(not w.kind.same for w in weights):
        return [VARYING, VARYING]
    if mode == 0:
        return [logits.kind, EQUAL]
    count = PARTIAL
    return [PARTIAL, count] if mode == 2 else [VARYING, count]


@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(ctx: Context) -> Kind:
    grad, logits, target = ctx.operands[:3]
    rest = ctx.operands[3:]
    if any(o.kind.tag == "?" for o in ctx.operands):
        return UNKNOWN
    if logits.kind.same and target.kind.same and all(o.kind.same for o in rest):
        return replace(grad.kind, flat=False) if grad.kind.tag in "EPZ" else VARYING
    rowwise = logits.kind.tag == target.kind.tag == "S" and logits.kind.dim == target.kind.dim == 0
    if rowwise and ctx["reduction"] == 2 and grad.kind.tag == "E":
        return replace(logits.kind, power=grad.kind.power)
    if rowwise and ctx["reduction"] == 0 and grad.kind.tag == "S":
        return replace(logits.kind, power=grad.kind.power)
    return UNKNOWN if grad.kind.tag == "P" else VARYING


@rule(
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    linear=False,
)
def _elementwise_loss(ctx: Context) -> Kind:
    kind = nonlinear(ctx)
    mode = ctx["reduction"]
    if kind.tag != "S" or mode == 0:
        return kind
    return replace(PARTIAL, power=int(mode == 1))


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")
def _elementwise_loss_backward(ctx: Context) -> Kind:
    return scaled(ctx, ctx.operands, linear_in=0)
