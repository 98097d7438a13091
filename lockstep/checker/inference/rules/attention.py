"""Scaled dot product attention: shards of the batch and of the heads stay."""

from __future__ import annotations

from dataclasses import replace

from lockstep.checker.inference.kinds import EQUAL, PARTIAL, UNKNOWN, VARYING, ZERO, Kind
from lockstep.checker.inference.rules.context import Context, Operand
from lockstep.checker.inference.rules.mixing import after_error, nonlinear
from lockstep.checker.inference.rules.norms import whole_axis
from lockstep.checker.inference.rules.registry import rule

FORWARD = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_fused_attention_overrideable",
    "scaled_dot_product_attention",
)
BACKWARD = tuple(f"{name}_backward" for name in FORWARD[:4])


@rule(*FORWARD, linear=False)
def _attention(ctx: Context) -> Kind | list[Kind]:
    query, key, value = ctx.operands[:3]
    kind = attended(ctx, query, key, value)
    if any(not o.kind.same for o in ctx.operands[3:]) and kind.same:
        kind = VARYING
    if ctx.op == FORWARD[-1]:
        return kind
    count = len(ctx.node.meta["val"])
    # The random state and other extras are no part of the computation.
    return [kind, kind, *[EQUAL] * (count - 2)]


def attended(ctx: Context, query: Operand, key: Operand, value: Operand) -> Kind:
    """The kind of the output, of the query's dimensions: [batch, heads, rows, dim]."""
    three = [query, key, value]
    if any(o.kind.tag == "P" for o in three):
        return nonlinear(ctx, three)
    if any(o.kind.tag == "?" for o in three):
        return UNKNOWN
    if all(o.kind.same for o in three):
        return EQUAL
    if any(o.kind.tag == "V" for o in three):
        return VARYING
    for o in (query, key):
        if o.kind.tag == "S" and o.kind.dim == o.ndim - 1:
            whole_axis(ctx, o)
            return VARYING
    places = {(o.kind.tag, o.kind.dim, o.kind.before) for o in three}
    if len(places) == 1 and query.kind.dim < query.ndim - 2:
        return query.kind
    rows = query.kind.tag == "S" and query.kind.dim == query.ndim - 2
    if rows and key.kind.same and value.kind.same and not ctx["is_causal"]:
        return query.kind
    return VARYING


@rule(*BACKWARD)
def _attention_backward(ctx: Context) -> list[Kind]:
    grad, query, key, value = ctx.operands[:4]
    saved = [o for o in ctx.operands[1:] if o.shape and o.kind.tag != "Z"]
    extra = [UNKNOWN] * (len(ctx.node.meta["val"]) - 3)
    if any(o.kind.tag == "?" for o in (grad, *saved)):
        return [UNKNOWN] * 3 + extra
    if grad.kind.tag == "P":
        if all(o.kind.same for o in saved):
            return [grad.kind] * 3 + extra
        return [after_error(ctx, VARYING)] * 3 + extra
    if grad.kind.tag == "Z":
        return [ZERO] * 3 + extra
    if all(o.kind.same for o in (grad, *saved)):
        return [replace(EQUAL, power=grad.kind.power)] * 3 + extra
    inner = query.ndim - 2
    made = [o for o in (ctx.get("out"), ctx.get("logsumexp")) if o is not None]
    along = {(o.kind.tag, o.kind.dim, o.kind.before) for o in (grad, query, *made)}
    places = along | {(o.kind.tag, o.kind.dim, o.kind.before) for o in (key, value)}
    if len(places) == 1 and query.kind.tag == "S" and query.kind.dim < inner:
        return [query.kind] * 3 + extra
    rows = len(along) == 1 and query.kind.tag == "S" and query.kind.dim == inner
    if rows and key.kind.same and value.kind.same and not ctx["is_causal"]:
        return [query.kind, PARTIAL, PARTIAL, *extra]
    return [VARYING] * 3 + extra
