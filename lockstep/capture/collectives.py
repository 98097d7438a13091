"""Every public collective, as it is written in a step, becomes an operation on a logical axis.

One table maps the collectives of `torch.distributed`, sync or async, on one tensor or on lists.
`distributed.nn` ends in them; functional collectives have their group argument named by axis.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist

from lockstep import _compat
from lockstep.capture.coordinates import place_of
from lockstep.capture.hooks import swapped
from lockstep.capture.origin import user_line
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError
from lockstep.spmd import collectives as spmd
from lockstep.spmd.mesh import Axis, axis_of

Arguments = dict[str, Any]


def name_axis(group: Any, what: str) -> Axis:
    """The axis that a group argument stands for.

    Raises:
        CaptureError: no axis of a mesh stands for these ranks.
    """
    found = axis_of(group)
    if found is not None:
        return found
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    raise CaptureError(
        f"{what} uses a process group that is no mesh axis",
        where=user_line(),
        got=f"a group of ranks {ranks}",
        why="a group is named by its axis, so that one program fits every rank",
        fix="make the mesh with this axis: ls.mesh(...), and use mesh.get_group(name)",
    )


class PendingWork:
    """What an async collective returns in a trace; its wait is a node of the graph."""

    def __init__(
        self, name: str, finish: Callable[[], None], open_works: list[PendingWork]
    ) -> None:
        self.name, self.line, self._finish = name, user_line(), finish
        self._open = open_works
        open_works.append(self)

    def wait(self, timeout: Any = None) -> bool:
        """Record the wait; the collective's outputs hold its result from here on."""
        if self in self._open:
            self._open.remove(self)
            self._finish()
        return True


class _Skipped:
    """The work of a collective that was refused, where a capture goes on without it."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class CollectiveRecorder:
    """Maps the collectives that are called while a step is traced."""

    def __init__(self) -> None:
        self._open: list[PendingWork] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Intercept every collective called on this thread while inside."""
        with swapped(self._swaps()):
            yield

    def refuse_unfinished(self) -> None:
        """Refuse a step that ends before it has waited for all its async collectives.

        Raises:
            CaptureError: names the first one's line.
        """
        for work in self._open:
            refuse(
                CaptureError(
                    f"the step never waits for an async {work.name}",
                    where=work.line,
                    got=f"{len(self._open)} collective(s) without a wait()",
                    why="what is read from its tensor before the wait is undefined",
                    fix="work.wait() before the tensor is used",
                )
            )

    def _swaps(self) -> dict[FunctionType, Any]:
        c10d = dist.distributed_c10d
        swaps: dict[FunctionType, Any] = {}
        for value in vars(c10d).values():
            if type(value) is FunctionType and value.__code__.co_freevars == ("func",):
                swaps[value] = self._collective
        for name in ("isend", "irecv", "batch_isend_irecv"):
            swaps[getattr(c10d, name)] = _refuse_point_to_point
        for resolver in _compat.group_resolvers():
            swaps[resolver] = _resolve
        return swaps

    def _collective(self, original: Any, args: Any, kwargs: Any) -> Any:
        try:
            return self._mapped(original, args, kwargs)
        except CaptureError as error:
            refuse(error)
            return _Skipped()

    def _mapped(self, original: Any, args: Any, kwargs: Any) -> Any:
        inner = original.__closure__[0].cell_contents
        name = inner.__name__
        if name in _QUERIES:
            return original(*args, **kwargs)
        build = _TABLE.get(name)
        if build is None:
            raise _unsupported(name)
        bound = inspect.signature(inspect.unwrap(inner)).bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        axis = name_axis(arguments.get("group"), f"dist.{name}")
        # In place and outside autograd, as the original is: it neither records nor bumps versions.
        with torch.no_grad():
            started, finish = build(arguments, axis)
        work = PendingWork(name, lambda: _finish(started, finish), self._open)
        if arguments.get("async_op"):
            return work
        work.wait()
        return None


def _finish(started: torch.Tensor, finish: Callable[[torch.Tensor], None]) -> None:
    with torch.no_grad():
        finish(spmd.wait(started))


def _op(arguments: Arguments) -> str:
    op = arguments.get("op", dist.ReduceOp.SUM)
    names = {getattr(dist.ReduceOp, n.upper()): n for n in spmd.REDUCTIONS}
    for known, name in names.items():
        if op == known:
            return name
    raise CaptureError(
        f"the reduction {op} has no name in a graph",
        where=user_line(),
        want=f"one of {', '.join(spmd.REDUCTIONS)}",
    )


def _into(target: torch.Tensor) -> Callable[[torch.Tensor], None]:
    return lambda result: _write(target, result.view(target.shape))


def _write(target: torch.Tensor, value: torch.Tensor) -> None:
    target.data.copy_(value)


def _scatter_into(targets: list[torch.Tensor]) -> Callable[[torch.Tensor], None]:
    def finish(result: torch.Tensor) -> None:
        flat = result.reshape(-1)
        pieces = flat.split([t.numel() for t in targets])
        for target, piece in zip(targets, pieces, strict=True):
            _write(target, piece.view(target.shape))

    return finish


def _all_reduce(a: Arguments, axis: Axis) -> Any:
    return spmd.all_reduce(a["tensor"], _op(a), axis.name), _into(a["tensor"])


def _broadcast(a: Arguments, axis: Axis) -> Any:
    source = a.get("group_src")
    if source is None:
        source = place_of(a["src"], axis.name, axis.ranks)
        if source is None:
            raise CaptureError(
                f"broadcast from rank {a['src']}, which is not on axis {axis.name} here",
                where=user_line(),
                got=f"ranks {list(axis.ranks)}",
                fix="say the source by its place on the axis: broadcast(..., group_src=0)",
            )
    return spmd.broadcast(a["tensor"], source, axis.name), _into(a["tensor"])


def _gather_into(output: str, source: str) -> Callable[[Arguments, Axis], Any]:
    def build(a: Arguments, axis: Axis) -> Any:
        return spmd.all_gather(a[source], axis.size, axis.name), _into(a[output])

    return build


def _all_gather_list(a: Arguments, axis: Axis) -> Any:
    _even(a["tensor_list"], a["tensor"], "all_gather")
    return spmd.all_gather(a["tensor"], axis.size, axis.name), _scatter_into(a["tensor_list"])


def _reduce_scatter_into(a: Arguments, axis: Axis) -> Any:
    started = spmd.reduce_scatter(a["input"], _op(a), axis.size, axis.name)
    return started, _into(a["output"])


def _reduce_scatter_list(a: Arguments, axis: Axis) -> Any:
    _even(a["input_list"], a["output"], "reduce_scatter")
    flat = torch.cat([t.reshape(-1) for t in a["input_list"]])
    started = spmd.reduce_scatter(flat, _op(a), axis.size, axis.name)
    return started, _into(a["output"])


def _all_to_all_single(a: Arguments, axis: Axis) -> Any:
    n = axis.size
    outputs = a.get("output_split_sizes") or [a["output"].shape[0] // n] * n
    inputs = a.get("input_split_sizes") or [a["input"].shape[0] // n] * n
    return spmd.all_to_all(a["input"], outputs, inputs, axis.name), _into(a["output"])


def _all_to_all_list(a: Arguments, axis: Axis) -> Any:
    outputs, inputs = a["output_tensor_list"], a["input_tensor_list"]
    flat = torch.cat([t.reshape(-1) for t in inputs])
    sizes = [t.numel() for t in outputs], [t.numel() for t in inputs]
    return spmd.all_to_all(flat, *sizes, axis.name), _scatter_into(outputs)


def _even(tensors: list[torch.Tensor], like: torch.Tensor, name: str) -> None:
    shapes = {tuple(t.shape) for t in tensors}
    if shapes != {tuple(like.shape)}:
        raise CaptureError(
            f"dist.{name} of tensors of different shapes",
            where=user_line(),
            got=f"shapes {sorted(shapes)} beside {tuple(like.shape)}",
            fix="pad to one shape, or use all_to_all_single with split sizes",
        )


_TABLE: dict[str, Callable[[Arguments, Axis], Any]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _gather_into("output_tensor", "input_tensor"),
    "_all_gather_base": _gather_into("output_tensor", "input_tensor"),
    "all_gather": _all_gather_list,
    "reduce_scatter_tensor": _reduce_scatter_into,
    "_reduce_scatter_base": _reduce_scatter_into,
    "reduce_scatter": _reduce_scatter_list,
    "all_to_all_single": _all_to_all_single,
    "all_to_all": _all_to_all_list,
}
# They neither communicate nor answer with the rank.
_QUERIES = ("get_world_size", "is_initialized", "get_backend")
_INSTEAD = {
    "barrier": "leave it out: collectives order themselves",
    "reduce": "all_reduce, whose result is defined on every rank",
    "gather": "all_gather, whose result is defined on every rank",
    "scatter": "broadcast, then take the own part",
    "send": "a collective; point to point between ranks is not captured yet",
    "recv": "a collective; point to point between ranks is not captured yet",
}


def _unsupported(name: str) -> CaptureError:
    objects = "object" in name
    return CaptureError(
        f"dist.{name} cannot be part of a captured step",
        where=user_line(),
        want=f"one of {', '.join(n for n in _TABLE if not n.startswith('_'))}",
        fix="do it outside the step" if objects else _INSTEAD.get(name, "do it outside the step"),
    )


def _refuse_point_to_point(original: Any, args: Any, kwargs: Any) -> Any:
    refuse(_unsupported("send" if original.__name__ == "isend" else "recv"))
    return _Skipped() if original.__name__ != "batch_isend_irecv" else []


def _resolve(original: Any, args: Any, kwargs: Any) -> Any:
    """What a group argument is in a graph: the axis' name; for a mesh, no graph node."""
    if original.__name__ == "_maybe_traced_group":
        return None
    group = args[0] if args else kwargs["group"]
    if isinstance(group, tuple) or hasattr(group, "get_group"):
        mesh, dim = group if isinstance(group, tuple) else (group, 0)
        group = mesh.get_group(dim)
    return name_axis(group, "a functional collective").name
