"""Layer, RMS, group and batch norm, forward and backward."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, Kind
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.mixing import after_error, nonlinear
from lockstep.checker.inference.rules.registry import rule


@rule("native_layer_norm", "rms_norm", "_fused_rms_norm", linear=False)
def _layer_norm(ctx: Context) -> Kind | list[Kind]:
    x = ctx.operands[0]
    axes = len(ctx["normalized_shape"])
    kind = normalised(ctx, x, x.ndim - axes)
    kind = _affine(ctx, kind, ctx.operands[1:])
    if ctx.op == "rms_norm":
        return kind
    return [kind] + [kind if kind.tag != "E" else EQUAL] * (2 - (ctx.op == "_fused_rms_norm"))


def normalised(ctx: Context, x: Operand, first: int) -> Kind:
    """What a normalisation over the dimensions from `first` on makes of its input."""
    if x.kind.tag == "S" and x.kind.dim >= first:
        whole_axis(ctx, x)
        return VARYING
    return nonlinear(ctx, [x])


def whole_axis(ctx: Context, x: Operand) -> None:
    """Object to a normalisation over a dimension of which each rank holds a shard."""
    if ctx.forward:
        ctx.fault(
            "LS519",
            f"{ctx.op.strip('_')} over a sharded dimension",
            "each rank normalises its own shard by itself; the statistics have to span all ranks",
            x,
            want="R, I or a shard of another dimension",
        )


def _affine(ctx: Context, kind: Kind, weights: list[Operand]) -> Kind:
    """Weights along the normalised dimensions, which no shard is of."""
    if any(w.kind.tag == "P" for w in weights):
        return nonlinear(ctx, weights)
    if any(w.kind.tag == "?" for w in weights):
        return UNKNOWN
    return VARYING if any(w.kind.varies for w in weights) else kind


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(ctx: Context) -> list[Kind]:
    grad, x = ctx.operands[0], ctx.operands[1]
    rest = ctx.operands[2:]
    dx = backward_of_input(ctx, grad, x, rest)
    saved = [o for o in rest if o.shape[:-1] == x.shape[:-1]]  # the statistics of its rows
    fit = all((o.kind.same and x.kind.same) or _place(o) == _place(x) for o in saved)
    per_row = summed_over_rows(grad, x) if fit else VARYING
    if "P" in grad.kind.tag + x.kind.tag and not fit:
        per_row = UNKNOWN
    bias = summed_over_rows(grad, grad)
    return [dx, per_row, bias]


def _place(o: Operand) -> tuple[str, int, int]:
    return o.kind.tag, o.kind.dim, o.kind.before


def backward_of_input(ctx: Context, grad: Operand, x: Operand, rest: list[Operand]) -> Kind:
    """The gradient of an input that is normalised row by row."""
    kinds = [grad.kind, x.kind, *(o.kind for o in rest)]
    if any(k.tag == "?" for k in kinds):
        return UNKNOWN
    if grad.kind.tag == "P":
        if all(k.same for k in kinds[1:]):
            return grad.kind
        return after_error(ctx, VARYING)
    if any(k.tag == "P" for k in kinds):
        return UNKNOWN
    if grad.kind.tag == "Z":
        return grad.kind
    if all(k.same for k in kinds):
        return replace(EQUAL, power=grad.kind.power)
    shards = {(k.dim, k.before) for k in kinds if k.tag == "S"}
    sided = x.kind.same or (grad.kind.same and not grad.kind.flat)
    if len(shards) == 1 and not sided and not any(k.tag == "V" for k in kinds):
        return x.kind
    return VARYING


def summed_over_rows(grad: Operand, x: Operand) -> Kind:
    """The gradient of a weight: each rank adds up its own rows."""
    if "?" in grad.kind.tag + x.kind.tag:
        return UNKNOWN
    if grad.kind.tag == "Z":
        return grad.kind
    if grad.kind.tag == "S" and x.kind.tag == "S":
        same = (grad.kind.dim, grad.kind.before) == (x.kind.dim, x.kind.before)
        return replace(PARTIAL, power=grad.kind.power) if same else VARYING
    if grad.kind.tag == "P" and x.kind.tag in "EP":
        return grad.kind
    if grad.kind.same and x.kind.same:
        return replace(EQUAL, power=grad.kind.power)
    return VARYING if "P" not in grad.kind.tag + x.kind.tag else UNKNOWN


@rule(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update",
    "cudnn_batch_norm",
    "native_group_norm",
    linear=False,
)
def _batch_norm(ctx: Context) -> list[Kind]:
    x, weights = ctx.operands[0], ctx.operands[1:]
    count = len(ctx.node.meta["val"])
    if ctx.op == "native_group_norm":
        inside = x.kind.tag == "S" and x.kind.dim > 0
    else:
        inside = x.kind.tag == "S" and x.kind.dim != 1 and bool(ctx["training"])
    if x.kind.tag == "S" and x.kind.dim == 1 and ctx.op != "native_group_norm":
        by_channel = all(w.kind.tag == "S" and w.kind.dim == 0 for w in weights)
        own = replace(x.kind, dim=0)
        return [x.kind, own, own, *[VARYING] * (count - 3)] if by_channel else [VARYING] * count
    kind = VARYING if inside else _affine(ctx, nonlinear(ctx, [x]), weights)
    own = VARYING if kind.tag == "S" else kind
    return [kind, *[own] * (count - 1)]


@rule("native_batch_norm_backward", "native_group_norm_backward", "batch_norm_backward")
def _batch_norm_backward(ctx: Context) -> list[Kind]:
    grad, x = ctx.operands[0], ctx.operands[1]
    rest = ctx.operands[2:]
    if grad.kind.tag == "P" and all(o.kind.same for o in (x, *rest)):
        return [grad.kind] * 3
    if all(o.kind.same for o in ctx.operands):
        return [replace(EQUAL, power=grad.kind.power)] * 3
    if any(o.kind.tag in "?P" for o in ctx.operands):
        return [UNKNOWN] * 3
    rows = grad.kind.tag == "S" and x.kind == replace(grad.kind) and grad.kind.dim == 0
    trained = ctx["update"] if ctx.op == "batch_norm_backward" else ctx["train"]
    if rows and (ctx.op == "native_group_norm_backward" or not trained):
        return [x.kind, summed_over_rows(grad, x), replace(PARTIAL, power=grad.kind.power)]
    return [VARYING] * 3
