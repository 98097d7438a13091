"""Tensors made from numbers, and random draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.fx import Node

from lockstep.checker.inference.kinds import EQUAL, FLAT, UNKNOWN, VARYING, ZERO, Kind
from lockstep.checker.inference.rules.context import Context
from lockstep.checker.inference.rules.mixing import nonlinear, scaled
from lockstep.checker.inference.rules.registry import op_name, rule

EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")


@rule("zeros", "zeros_like", "new_zeros", "_efficientzerotensor")
def _zeros(ctx: Context) -> Kind:
    return ZERO


@rule(*EMPTY)
def _empty(ctx: Context) -> Kind:
    return replace(FLAT, note="empty")


@rule("ones", "ones_like", "new_ones", "full", "full_like", "new_full", "scalar_tensor", "fill")
def _full(ctx: Context) -> Kind:
    if ctx.differs:
        return VARYING
    value = ctx["fill_value"] if "full" in ctx.op else ctx["s"] if "scalar" in ctx.op else None
    if ctx.op == "fill":
        given = ctx.get("value")
        value = ctx["value"]
        if given is not None:
            return replace(given.kind, flat=given.kind.same)
    return ZERO if isinstance(value, (int, float)) and value == 0 else FLAT


@rule("zero")
def _zero(ctx: Context) -> Kind:
    return ZERO


@rule("arange", "eye", "linspace", "tril_indices", "triu_indices")
def _counted(ctx: Context) -> Kind:
    return VARYING if ctx.differs else EQUAL


@rule("native_dropout", linear=False)
def _dropout(ctx: Context) -> list[Kind]:
    """A draw is typed like what it is drawn for; whether its stream fits is judged apart."""
    first = ctx.operands[0]
    if first.kind.tag in "PZ":
        return [first.kind, EQUAL] if first.kind.tag == "P" else [ZERO, EQUAL]
    kind = replace(first.kind, flat=False, note="")
    return [kind, kind]


@rule("native_dropout_backward")
def _dropout_backward(ctx: Context) -> Kind:
    return scaled(ctx, ctx.operands, linear_in=0)


DRAWS = (
    "rand_like randn_like bernoulli multinomial normal uniform exponential random log_normal "
    "geometric cauchy randint_like poisson"
)


@rule(*DRAWS.split())
def _drawn(ctx: Context) -> Kind:
    source = drawn_for(ctx.node)
    kind = ctx.kind(source) if source is not None else EQUAL
    return EQUAL if kind.tag in "PZ" else replace(kind, flat=False, note="")


@rule("rand", "randn", "randint", "randperm")
def _drawn_alone(ctx: Context) -> Kind:
    """Drawn for nothing yet: varying, unless all of its readers are equal on all ranks."""
    return UNKNOWN


def drawn_for(node: Node) -> Node | None:
    """Return the value that a random node draws for, also through `empty_like(x)`."""
    source: Any = next(iter(node.all_input_nodes), None)
    while source is not None and source.op == "call_function":
        name = op_name(source.target)
        if not (name in EMPTY or name in ("zeros_like", "ones_like")):
            break
        if not source.all_input_nodes:
            break
        source = source.all_input_nodes[0]
    return source


@rule("_assert_async", "_assert_tensor_metadata", "_assert_scalar", "sym_size", "sym_numel")
def _nothing(ctx: Context) -> Kind:
    return EQUAL


@rule("isin", "searchsorted", "bucketize", linear=False)
def _pairs(ctx: Context) -> Kind:
    first, *rest = ctx.operands
    if ctx.op == "searchsorted":  # the table comes first
        first, *rest = [*rest, first]
    return nonlinear(ctx, [first]) if all(o.kind.same for o in rest) else UNKNOWN
