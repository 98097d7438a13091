"""What `ls.check` was asked: read, and refused where it cannot be meant."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lockstep import _compat
from lockstep.checker.world import arguments_of
from lockstep.errors import UsageError
from lockstep.spmd.asked import axis_names, refuse_deferred, way_of, ways_by_axis

MOST_RANKS = 64  # that are captured and run one after the other
RETURNS = "the step's arguments on that rank: a tuple, or (args, kwargs)"


def mesh_of(mesh: Any, witnesses: str) -> dict[str, int]:
    """The ranks by axis.

    Raises:
        UsageError: it is no such mapping, or all of too many ranks would be run.
    """
    if not isinstance(mesh, Mapping) or not mesh:
        names, shape = getattr(mesh, "mesh_dim_names", None), getattr(mesh, "shape", ())
        sizes = dict(zip(names, shape, strict=True)) if names else None
        raise UsageError(
            f"ls.check: mesh={mesh!r}",
            want='ranks by axis, such as {"tp": 2}',
            fix=f"mesh={sizes}" if sizes else None,
        )
    for name, size in mesh.items():
        if not isinstance(name, str) or not name or type(size) is not int or size < 1:
            raise UsageError(
                f"ls.check: mesh={dict(mesh)}",
                got=f"{name!r}: {size!r}",
                want='a name, and 1 rank or more, such as {"tp": 2}',
            )
    ranks = math.prod(mesh.values())
    if ranks > MOST_RANKS and witnesses != "types":
        raise UsageError(
            f"ls.check: a mesh of {ranks} ranks",
            want=f"{MOST_RANKS} in all at most",
            why="each rank is captured and run here, one after the other",
            fix=["2 or 4 ranks along each axis show the same faults", 'witnesses="types"'],
        )
    return dict(mesh)


def data_of(data: Any, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which batches differ.

    Raises:
        UsageError: they are none of the mesh's.
    """
    axes = axis_names(data, "ls.check: ")
    for name in axes:
        _refuse_unknown(name, mesh)
    return axes


def pending_of(pending: Any, mesh: Mapping[str, int]) -> dict[str, str]:
    """What reduces gradients after the step: axis -> "mean" or "sum".

    Raises:
        UsageError: an axis that the mesh lacks, or other words.
    """
    ways = ways_by_axis(pending, "ls.check: ")
    for name in ways:
        _refuse_unknown(name, mesh)
    return {name: way_of(name, words, "ls.check: pending") for name, words in ways.items()}


def _refuse_unknown(name: Any, mesh: Mapping[str, int]) -> None:
    if not isinstance(name, str) or name not in mesh:
        raise UsageError(f"ls.check: there is no mesh axis {name}", want=f"one of {list(mesh)}")


def refuse_seconds(seconds: Any) -> None:
    """Refuse what is no time for repairs.

    Raises:
        UsageError: it is none.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise UsageError(f"ls.check: repair_s={seconds!r}", want="seconds; 0 tries no repairs")


def fitting(step: Callable[..., Any], make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `make` whose results are compared with what the step takes.

    Raises:
        UsageError: it takes no mesh, or runs nothing when called. Of its calls: the step cannot
            be called with what it returns.
    """
    refuse_deferred(make, "ls.check: make")
    _refuse_without_mesh(make)
    takes = _taken(step)
    name = getattr(step, "__name__", type(step).__name__)

    def made(mesh: Any) -> Any:
        given = make(mesh)
        if given is None:
            raise UsageError("ls.check: make returns None", want=RETURNS)
        if takes is not None:
            _refuse_unfit(given, takes, name)
        return given

    return made


def _refuse_without_mesh(make: Callable[[Any], Any]) -> None:
    takes = _signature(make)
    try:
        if takes is not None:
            takes.bind(object())
    except TypeError as error:
        raise UsageError(
            "ls.check: make cannot be called with the mesh alone",
            got=f"make{_names(takes)}: {error}",
            want=f"make(mesh): gets the rank's DeviceMesh, returns {RETURNS}",
        ) from None


def _refuse_unfit(given: Any, takes: inspect.Signature, name: str) -> None:
    args, kwargs = arguments_of(given)
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        kind = type(given).__name__
        fix = {"list": "return tuple(...)", "dict": "return (), {...}"}.get(kind)
        raise UsageError(
            "ls.check: what make returns does not fit the step",
            got=f"a {kind}, which is one argument" if fix else _counted(args, kwargs, error),
            want=f"the arguments of {name}{_names(takes)}, as a tuple or (args, kwargs)",
            fix=fix,
        ) from None


def _counted(args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError) -> str:
    named = f" and {', '.join(kwargs)}" if kwargs else ""
    return f"{len(args)} argument{'' if len(args) == 1 else 's'}{named}: {error}"


def _taken(step: Any) -> inspect.Signature | None:
    """What a step takes; a module's hooks may change what its `forward` is given."""
    if not isinstance(step, torch.nn.Module):
        return _signature(step)
    return None if any(_compat.hook_tables(step)) else _signature(step.forward)


def _signature(function: Any) -> inspect.Signature | None:
    """What a function takes; None where Python does not know."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _names(takes: inspect.Signature | None) -> str:
    """The parameters without their annotations."""
    bare = [each.replace(annotation=each.empty) for each in takes.parameters.values()]  # type: ignore[union-attr]
    return str(inspect.Signature(bare))
