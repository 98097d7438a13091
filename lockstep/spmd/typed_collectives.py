"""Collectives that say what they take and give, and by that what runs in the backward.

    y = all_reduce(h @ w, "tp", src=P, dst=I)      # the backward does nothing
    x = convert(x, "tp", src=I, dst=R)             # the backward is an all-reduce

Forward and backward are `lockstep.spmd.transitions.TABLE`. Every rank of the axis calls the same
one. A call leaves only operators on the axis' name in a captured graph. `async_op=True` returns a
`Started` at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal

import torch

from lockstep.errors import UsageError
from lockstep.spmd import claims
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.plans import frozen, plan
from lockstep.spmd.transitions import Move
from lockstep.spmd.types import Type, V

Op = Literal["sum", "avg", "max", "min"]
Sizes = int | Sequence[int] | None


class _Moved(torch.autograd.Function):
    """One row of the table; the gradient goes through the row of the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, move: Move, started: torch.Tensor | None) -> Any:
        ctx.move = move
        if started is None:
            return move.forward.run(x)
        return move.forward.finish(started, x.shape)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return _run(grad, ctx.move.flipped, None), None, None


def _run(x: torch.Tensor, move: Move, started: torch.Tensor | None) -> torch.Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        return _Moved.apply(x, move, started)
    if started is not None:
        return move.forward.finish(started, x.shape)
    return move.forward.run(x)


class Started:
    """A typed collective under way, as `async_op=True` returns it.

    Between the call and `wait()` the input must not be changed. The gradient goes to the input,
    through the same row of the table as without `async_op`, not overlapped.
    """

    def __init__(self, x: torch.Tensor, move: Move, note: Callable[..., None]) -> None:
        self._x, self._move, self._note = x, move, note
        self._result: torch.Tensor | None = None
        with torch.no_grad():
            self._started = move.forward.start(x)

    def wait(self) -> torch.Tensor:
        """Return the result once it is there; the same one at a second call."""
        if self._result is None:
            self._result = _run(self._x, self._move, self._started)
            self._note(self._x, self._result)
            del self._x, self._started
        return self._result


def _say_nothing(before: torch.Tensor, after: torch.Tensor) -> None:
    pass


def _call(
    verb: str,
    x: torch.Tensor,
    axis: str,
    src: Type,
    dst: Type,
    op: str | None = None,
    dim: int = 0,
    src_sizes: Any = None,
    dst_sizes: Any = None,
    root: int = 0,
    expert: bool = False,
    async_op: bool = False,
) -> Any:
    """Run a row of the table, or start it; in a recording, note it at the caller's caller."""
    ranks = axis_named(axis).size
    wanted = verb, axis, ranks, src, dst, op, dim, src_sizes, dst_sizes, root, expert
    try:
        move = plan(*wanted)(x)
    except TypeError:  # symbolic splits are no key of what is remembered
        move = plan.__wrapped__(*wanted)(x)
    if claims.recording is None and not async_op:
        return _run(x, move, None)
    note = _noting(verb, axis, src, dst, op, sys._getframe(2))
    if async_op:
        return Started(x, move, note)
    out = _run(x, move, None)
    note(x, out)
    return out


def _noting(
    verb: str, axis: str, src: Type, dst: Type, op: str | None, frame: FrameType
) -> Callable[..., None]:
    said = claims.recorder()
    if said is None:
        return _say_nothing
    place = claims.Place.of(frame)
    op = op or ("avg" if src.factor == "mean" else "sum")

    def note(before: torch.Tensor, after: torch.Tensor) -> None:
        said.moves.append(claims.Moved(verb, axis, src, dst, op, before, after, place))

    return note


def all_reduce(
    x: torch.Tensor,
    axis: str,
    *,
    src: Type,
    dst: Type,
    op: Op | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce over an axis; every rank gets the result.

    | forward       | backward                              |
    |---------------|---------------------------------------|
    | P->R          | all_reduce                            |
    | P->I          | nothing                               |
    | avg P->R      | all_reduce avg                        |
    | avg P->I      | g / N                                 |
    | max, min V->R | none: `x` must not need a gradient    |
    | max, min V->I | none: `x` must not need a gradient    |

    Args:
        x: any shape, the same on every rank of the axis.
        axis: a mesh axis.
        src: P or P("mean"); V for max and min.
        dst: R or I, which decides the backward.
        op: "sum", "avg", "max" or "min"; by default what `src` stands for, sum or mean.
        async_op: return a `Started` at once.

    Returns:
        A new tensor of the shape of `x`, equal on every rank.

    Raises:
        UsageError: another transition, an unknown axis, or max and min of what needs a gradient.

    Example:
        >>> y = all_reduce(h @ w, "tp", src=P, dst=I)                        # doctest: +SKIP
    """
    if op in ("max", "min") and x.requires_grad and torch.is_grad_enabled():
        raise UsageError(
            f"{op} over {axis} of a tensor that needs a gradient",
            why="its derivative is that of one rank's element, which the table does not hold",
            fix=f'all_reduce(x.detach(), "{axis}", src={src}, dst={dst}, op="{op}")',
        )
    return _call("all_reduce", x, axis, src, dst, op, async_op=async_op)


def all_gather(
    x: torch.Tensor,
    axis: str,
    *,
    src: Type,
    dst: Type,
    dim: int = 0,
    sizes: Sizes = None,
    async_op: bool = False,
) -> Any:
    """Put the ranks' parts of a dimension side by side, on every rank.

    | forward    | backward       |
    |------------|----------------|
    | V, S(d)->R | reduce_scatter |
    | V, S(d)->I | own slice      |

    Args:
        x: this rank's part; the other dimensions are the same on every rank.
        axis: a mesh axis.
        src: S(d), or V, which is gathered along `dim`.
        dst: R or I, which decides the backward.
        dim: for V alone.
        sizes: by coordinate how much each rank holds, or the whole extent, shared out by the rule
            of `torch.tensor_split`; None where all hold as much as this one.
        async_op: return a `Started` at once.

    Returns:
        A new tensor, the whole on every rank.

    Raises:
        UsageError: another transition, an unknown axis, a dimension or sizes that do not fit.

    Example:
        >>> w = all_gather(shard, "dp", src=S(0), dst=R)                     # doctest: +SKIP
    """
    return _call("all_gather", x, axis, src, dst, None, dim, frozen(sizes), async_op=async_op)


def reduce_scatter(
    x: torch.Tensor,
    axis: str,
    *,
    src: Type,
    dst: Type,
    op: Op | None = None,
    dim: int = 0,
    sizes: Sizes = None,
    async_op: bool = False,
) -> Any:
    """Reduce over an axis; every rank gets its own slice of the result.

    | forward        | backward        |
    |----------------|-----------------|
    | P->V, S(d)     | all_gather      |
    | avg P->V, S(d) | all_gather, / N |

    Args:
        x: the whole extent, of the same shape on every rank.
        axis: a mesh axis.
        src: P or P("mean").
        dst: S(d), or V, which is cut along `dim`.
        op: "sum" or "avg"; by default what `src` stands for.
        dim: for V alone.
        sizes: by coordinate how much each rank gets; by default the rule of `torch.tensor_split`.
        async_op: return a `Started` at once.

    Returns:
        A new tensor, this rank's slice.

    Raises:
        UsageError: another transition, an unknown axis, a dimension or sizes that do not fit.

    Example:
        >>> y = reduce_scatter(h @ w, "tp", src=P, dst=S(0))                 # doctest: +SKIP
    """
    return _call(
        "reduce_scatter", x, axis, src, dst, op, dim, None, frozen(sizes), async_op=async_op
    )


def all_to_all(
    x: torch.Tensor,
    axis: str,
    *,
    src: Type,
    dst: Type,
    dim: int = 0,
    src_sizes: Sizes = None,
    dst_sizes: Sizes = None,
    input_splits: Sequence[int] | None = None,
    output_splits: Sequence[int] | None = None,
    async_op: bool = False,
) -> Any:
    """Exchange slices, every rank with every other.

    | forward    | backward             |
    |------------|----------------------|
    | S(i)->S(j) | S(j)->S(i)           |
    | V->V       | V->V, splits swapped |

    Args:
        x: this rank's shard of dimension i with the whole of dimension j; or any rows, for V.
        axis: a mesh axis.
        src, dst: S(i) and S(j), or V and V.
        dim: where the rows of a V are.
        src_sizes: how much of dimension i each rank holds, or its whole extent; None where even.
        dst_sizes: how much of dimension j each gets; by default the rule of `torch.tensor_split`.
        input_splits, output_splits: rows of a V to and from each rank; both, or none where even.
        async_op: return a `Started` at once.

    Returns:
        A new tensor.

    Raises:
        UsageError: another transition, an unknown axis, sizes or splits that do not fit.

    Example:
        >>> heads = all_to_all(x, "cp", src=S(1), dst=S(2))                  # doctest: +SKIP
    """
    if src is V:
        src_sizes, dst_sizes = input_splits, output_splits
    sizes = frozen(src_sizes), frozen(dst_sizes)
    return _call("all_to_all", x, axis, src, dst, None, dim, *sizes, async_op=async_op)


def broadcast(
    x: torch.Tensor, axis: str, *, src: Type, dst: Type, root: int = 0, async_op: bool = False
) -> Any:
    """Give every rank of an axis the tensor of one.

    | forward | backward                          |
    |---------|-----------------------------------|
    | V->R    | reduce to `root`, zero elsewhere  |
    | V->I    | own g on `root`, zero elsewhere   |

    Args:
        x: of the same shape on every rank; only the value at `root` counts.
        axis: a mesh axis.
        src: V.
        dst: R or I, which decides the backward.
        root: a coordinate on the axis.
        async_op: return a `Started` at once.

    Returns:
        A new tensor, equal on every rank.

    Raises:
        UsageError: another transition, an unknown axis, or no coordinate of it.

    Example:
        >>> table = broadcast(table, "dp", src=V, dst=I, root=0)             # doctest: +SKIP
    """
    return _call("broadcast", x, axis, src, dst, root=root, async_op=async_op)


def convert(
    x: torch.Tensor,
    axis: str,
    *,
    src: Type,
    dst: Type,
    dim: int = 0,
    sizes: Sizes = None,
    expert: bool = False,
) -> torch.Tensor:
    """Change a value's type without communicating; the value that it stands for stays.

    | forward                        | backward                      |
    |--------------------------------|-------------------------------|
    | I->R: nothing                  | all_reduce                    |
    | R->I: nothing (expert)         | keep on one rank              |
    | R->V, S(d): own slice          | zero-pad own slice            |
    | I->V, S(d): own slice          | all_gather                    |
    | R->P: keep on coordinate 0     | keep on coordinate 0          |
    | I->P: keep on coordinate 0     | nothing                       |
    | V, S(d)->P: zero-pad own slice | own slice                     |

    Args:
        x: any tensor; of a V or S(d) source this rank's part.
        axis: a mesh axis.
        src, dst: a row of the table.
        dim: along which a V is cut or padded.
        sizes: by coordinate, of the sharded dimension; by default the rule of `torch.tensor_split`
            where the whole is known, else all as much as this rank. The whole extent for the rule.
        expert: admit R->I.

    Returns:
        A view of `x` where forward does nothing, else a new tensor.

    Raises:
        UsageError: another transition, an unknown axis, a dimension or sizes that do not fit.

    Example:
        >>> h = convert(x, "tp", src=I, dst=R)                               # doctest: +SKIP
    """
    given = frozen(sizes)
    return _call("convert", x, axis, src, dst, None, dim, given, given, expert=expert)


def reinterpret(
    x: torch.Tensor, axis: str, *, src: Type, dst: Type, expert: bool = False
) -> torch.Tensor:
    """Say that this rank's data mean another type; data and gradient are untouched.

    The value that they stand for may change: an R read as P counts N times, which asks for
    `expert=True`. I takes no part, since an untouched gradient would be wrong.

    | forward              | backward |
    |----------------------|----------|
    | R->V, V->P, S(d)<->V | nothing  |
    | R->P (expert)        | nothing  |

    Args:
        x: any tensor.
        axis: a mesh axis.
        src, dst: a row of the table; P("mean") is admitted as `dst`.
        expert: admit R->P.

    Returns:
        A view of `x`.

    Raises:
        UsageError: another transition, or an unknown axis.

    Example:
        >>> share = reinterpret(loss, "dp", src=V, dst=P("mean"))            # doctest: +SKIP
    """
    return _call("reinterpret", x, axis, src, dst, expert=expert)
