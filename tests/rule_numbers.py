"""Holds rules to numbers: an operator is typed, then run on simulated ranks, then on the whole.

A kind says how the ranks' values make up one whole value. An inferred kind holds if the ranks'
results make up, in that way, what the operator gives on the whole operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from lockstep.checker.inference.flow import Flow, Graphs
from lockstep.checker.inference.kinds import EQUAL, PARTIAL, VARYING, Kind, shard

RANKS = 2
FEW = dict(max_examples=3, deadline=None, derandomize=True, database=None)
F64 = torch.float64


@dataclass
class Value:
    """One operand: its kind, the ranks' values, and the whole that they make up (None for V)."""

    kind: Kind
    locals: list[torch.Tensor]
    whole: torch.Tensor | None


def parts(whole: torch.Tensor, kind: Kind, seed: int = 0) -> Value:
    """Divide a whole value among the ranks as a kind says."""
    draw = torch.Generator().manual_seed(seed + 99)
    if kind.tag == "S":
        return Value(kind, [t.clone() for t in whole.chunk(RANKS, kind.dim)], whole)
    if kind.tag == "P":
        terms = [torch.randn(whole.shape, generator=draw, dtype=F64) for _ in range(RANKS - 1)]
        total = whole * RANKS if kind.power else whole
        return Value(kind, [*terms, total - sum(terms)], whole)
    if kind.tag == "V":
        made = [torch.randn(whole.shape, generator=draw, dtype=F64) for _ in range(RANKS)]
        return Value(kind, made, None)
    return Value(kind, [whole.clone() for _ in range(RANKS)], whole)


def typed(
    function: Callable[..., Any], values: list[Value], phase: str = "forward"
) -> tuple[list[Kind], list[Any], Flow, list[list[torch.Tensor]]]:
    """Return the kinds of a function's results, the faults, the flow and the ranks' results."""
    gm = make_fx(lambda *args: function(*args))(*[v.locals[0] for v in values])
    nodes = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    flow = Flow(
        Graphs(
            axis="tp",
            nodes=[nodes] * RANKS,
            inputs={n: v.kind for n, v in zip(inputs, values, strict=True)},
            phases=dict.fromkeys(nodes, phase),
        )
    ).run()
    held = nodes[-1].args[0]
    out = list(held) if isinstance(held, (tuple, list)) else [held]
    kinds = [flow.kinds[n] for n in out if n is not None]
    results = [_list(function(*[v.locals[r] for v in values])) for r in range(RANKS)]
    return kinds, flow.faults, flow, results


def _list(out: Any) -> list[torch.Tensor]:
    return [t for t in out if t is not None] if isinstance(out, (tuple, list)) else [out]


def holds(kind: Kind, local: list[torch.Tensor], whole: torch.Tensor | None) -> bool:
    """Whether the ranks' values make up the whole as the kind says."""
    if kind.tag == "Z":
        return all(not t.any() for t in local)
    if kind.tag == "E" and not all(torch.allclose(t.double(), local[0].double()) for t in local):
        return False
    made = together(kind, local)
    if kind.tag == "E" and kind.power and made is not None:
        made = made / RANKS
    if made is None or whole is None:
        return True
    return made.shape == whole.shape and torch.allclose(made.double(), whole.double(), atol=1e-9)


def together(kind: Kind, local: list[torch.Tensor]) -> torch.Tensor | None:
    """Make up the whole from the ranks' values; None where the kind does not say how."""
    if kind.tag == "S":
        shape = local[0].shape
        split = (*shape[: kind.dim], kind.before, -1, *shape[kind.dim + 1 :])
        cut = torch.cat([t.reshape(split) for t in local], kind.dim + 1)
        return cut.reshape(*shape[: kind.dim], shape[kind.dim] * RANKS, *shape[kind.dim + 1 :])
    if kind.tag == "P":
        return sum(local) / (RANKS if kind.power else 1)  # type: ignore[return-value]
    return local[0] if kind.tag == "E" else None


def check(function: Callable[..., Any], values: list[Value], grads: bool = True) -> list[Kind]:
    """Hold the kinds of a function's results, and of its gradients, to numbers.

    Returns:
        The kinds of the results; empty if the types object to this use of it.
    """
    if not _runs(function, [v.locals[0] for v in values]):
        return []
    kinds, faults, flow, local = typed(function, values)
    assert not flow.unknown, f"no rule for {dict(flow.unknown)}"
    if faults:
        assert any(v.kind.tag in "SP" for v in values), faults
        return []
    wholes: list[Any] = [None] * len(kinds)
    if all(v.whole is not None for v in values):
        wholes = _list(function(*[v.whole for v in values]))
    for i, kind in enumerate(kinds):
        assert holds(kind, [out[i] for out in local], wholes[i]), (kind, [v.kind for v in values])
    floating = [i for i, v in enumerate(values) if v.locals[0].is_floating_point()]
    if grads and wholes[0] is not None and len(kinds) == 1 and floating:
        for dual in _duals(kinds[0]):
            _check_gradients(function, values, wholes[0], dual, floating)
    return kinds


def _runs(function: Callable[..., Any], tensors: list[torch.Tensor]) -> bool:
    """Whether the ranks' shapes fit each other at all."""
    try:
        function(*tensors)
    except (RuntimeError, IndexError, ValueError, UserWarning):
        return False
    return True


def _duals(kind: Kind) -> list[Kind]:
    if kind.tag == "S" and kind.before == 1:
        return [shard(kind.dim)]
    if kind.tag == "E":
        return [EQUAL, PARTIAL]
    return [EQUAL] if kind.tag == "P" and not kind.power else []


def _check_gradients(
    function: Callable[..., Any],
    values: list[Value],
    whole: torch.Tensor,
    dual: Kind,
    floating: list[int],
) -> None:
    grad = parts(torch.randn(whole.shape, generator=_seeded(5), dtype=F64), dual, 7)

    def backward(g: torch.Tensor, *args: torch.Tensor) -> Any:
        leaves = [a.detach().requires_grad_(i in floating) for i, a in enumerate(args)]
        out = function(*leaves)
        return torch.autograd.grad(out, [leaves[i] for i in floating], g)

    kinds, faults, flow, local = typed(backward, [grad, *values])
    said = [v.kind for v in values], dual
    assert not flow.unknown, f"no rule for {dict(flow.unknown)}"
    assert not faults, (said, faults)
    wholes = backward(grad.whole, *[v.whole for v in values])  # type: ignore[arg-type]
    for i, kind in enumerate(kinds):
        of = values[floating[i]].kind
        if of.tag == "S" and kind.tag == "E":
            kind = of  # as the flow has it of a value whose gradient it is
        assert holds(kind, [out[i] for out in local], wholes[i]), (i, kind, said)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kinds_for(shape: tuple[int, ...], letters: str) -> list[Kind]:
    """Return the kinds of these letters that a value of this shape can have."""
    shards = [shard(d) for d, n in enumerate(shape) if n % RANKS == 0] if "S" in letters else []
    plain = {"E": EQUAL, "P": PARTIAL, "V": VARYING}
    return [kind for letter, kind in plain.items() if letter in letters] + shards


@st.composite
def operand(draw: Any, shape: tuple[int, ...], letters: str = "ESPV", seed: int = 0) -> Value:
    """Draw an operand of random numbers of a kind that fits its shape."""
    whole = torch.randn(shape, generator=_seeded(seed), dtype=F64)
    return parts(whole, draw(st.sampled_from(kinds_for(shape, letters))), seed)


@st.composite
def integers(draw: Any, shape: tuple[int, ...], below: int, letters: str = "ES") -> Value:
    """Draw an operand of indices."""
    whole = torch.randint(0, below, shape, generator=_seeded(3))
    return parts(whole, draw(st.sampled_from(kinds_for(shape, letters))), 3)


def positive(value: Value) -> Value:
    """Return an operand whose numbers are above zero; no partial is of use then."""
    return parts(value.whole.abs() + 0.5, value.kind) if value.whole is not None else value


sizes = st.sampled_from([4, 6])  # no rank holds just one row, see `test_a_shard_of_one_row`
