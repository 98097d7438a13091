"""Collectives that say what they take and give, and by that what runs in the backward.

    y = all_reduce(h @ w, "tp", src=P, dst=I)      # the backward does nothing
    x = convert(x, "tp", src=I, dst=R)             # the backward is an all-reduce

Forward and backward are `lockstep.spmd.transitions.TABLE`. Every rank of the axis calls the same
one. A call leaves only operators on the axis' name in a captured graph. `async_op=True` returns a
`Started` at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from lockstep.errors import UsageError
from lockstep.spmd.calls import call
from lockstep.spmd.plans import frozen
from lockstep.spmd.types import Type, V

Op = Literal["sum", "avg", "max", "min"]
Sizes = int | Sequence[int] | None


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
    wanted = "all_reduce", axis, src, dst, op, 0, None, None, 0, False
    return call(x, wanted, async_op)


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
    given = frozen(sizes)
    wanted = "all_gather", axis, src, dst, None, dim, given, None, 0, False
    return call(x, wanted, async_op)


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
    given = frozen(sizes)
    wanted = "reduce_scatter", axis, src, dst, op, dim, None, given, 0, False
    return call(x, wanted, async_op)


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
    wanted = "all_to_all", axis, src, dst, None, dim, *sizes, 0, False
    return call(x, wanted, async_op)


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
    wanted = "broadcast", axis, src, dst, None, 0, None, None, root, False
    return call(x, wanted, async_op)


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
    if dim == 0 and sizes is None and not expert:
        return call(x, ("convert", axis, src, dst))
    given = frozen(sizes)
    return call(x, ("convert", axis, src, dst, None, dim, given, given, 0, expert))


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
    more = (None, 0, None, None, 0, True) if expert else ()
    return call(x, ("reinterpret", axis, src, dst, *more))
