"""What `ls.compile` was told: read, refused where it cannot be meant, and put in one form."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

from lockstep.build.passes.asked import asked_for
from lockstep.capture.ranges import Size
from lockstep.errors import UsageError
from lockstep.run.dynamic import read_dynamic
from lockstep.spmd.asked import WAYS, axis_names, way_of, ways_by_axis

BACKENDS = ("graph", "inductor")
NEW_SHAPES = ("build", "error")
CHECKS = ("off", "types", "full")  # from the weakest
EAGER = ("off", "on")


@dataclass(frozen=True)
class Options:
    """The options of one compiled step.

    Args:
        mesh: a DeviceMesh with named axes, or None.
        data: the axes over which batches differ.
        pending: axis -> who reduces later, in the user's words.
        roles: the axes along which ranks run other programs.
        guard: whether calls are compared before they run; what gives the loop's number for one.
        passes: over the captured graph -> the bytes that each may use.
        others: as `ls.compile` has them.
    """

    mesh: Any = None
    data: tuple[str, ...] = ()
    store: str | os.PathLike[str] | None = None
    backend: str = "inductor"
    on_new_shape: str = "build"
    dynamic: tuple[Size, ...] = ()
    outside: str = "error"  # what a size outside of `dynamic` does
    check: str = "types"
    eager_check: str = "off"
    pending: Mapping[str, str] = field(default_factory=dict)
    roles: tuple[str, ...] = ()
    guard: Callable[[], int | str] | bool = False
    passes: Mapping[str, int] = field(default_factory=dict)

    @property
    def reductions(self) -> dict[str, str]:
        """Axis -> "mean" or "sum": what happens to gradients after the step."""
        return {axis: WAYS[words] for axis, words in self.pending.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Axis -> number of ranks; empty without a mesh."""
        if self.mesh is None:
            return {}
        return dict(zip(self.mesh.mesh_dim_names or (), self.mesh.shape, strict=True))


def options(function: Any, **given: Any) -> Options:
    """Check what `ls.compile` was given.

    Raises:
        UsageError: not a function, not a mesh, none of its axes, or an unknown word.
    """
    if function is not None and not isinstance(function, (FunctionType, MethodType)):
        raise UsageError(
            "ls.compile takes a function or a method",
            got=f"a {type(function).__name__}",
            fix="def step(model, ...): return model(...)   and compile that",
        )
    mesh, data = given["mesh"], given["data"]
    if mesh is not None and not hasattr(mesh, "mesh_dim_names"):
        raise UsageError(f"mesh={mesh!r}", want="a DeviceMesh", fix="mesh=ls.mesh(dp=-1)")
    axes = (mesh.mesh_dim_names or ()) if mesh is not None else None
    over = axis_names(data)
    for axis in over:
        if not isinstance(axis, str) or (axes is not None and axis not in axes):
            raise _no_axis(f"data={data!r}", axes)
    pending = ways_by_axis(given["pending"])
    for axis, words in pending.items():
        if axes is None or axis not in axes:
            raise _no_axis(f"pending={pending!r}", axes or ())
        way_of(axis, words)
    given["roles"] = _roles(given["roles"], axes, over, given["check"])
    if not (isinstance(given["guard"], bool) or callable(given["guard"])):
        raise UsageError(
            f"guard={given['guard']!r}",
            want="True, or a function that gives the loop's own number of the step",
            fix="guard=lambda: state.step",
        )
    _refuse_store(given["store"])
    outside = given["on_new_shape"] or "error"
    given["on_new_shape"] = given["on_new_shape"] or "build"
    words = {"backend": BACKENDS, "on_new_shape": NEW_SHAPES, "check": CHECKS, "eager_check": EAGER}
    for name, known in words.items():
        if given[name] not in known:
            raise UsageError(f"{name}={given[name]!r}", want=f"one of {', '.join(known)}")
    given["passes"] = _passes(given)
    given |= {"data": over, "pending": pending, "outside": outside}
    return Options(**{**given, "dynamic": read_dynamic(given["dynamic"])})


def _roles(
    given: Any, axes: tuple[str, ...] | None, data: tuple[str, ...], check: str
) -> tuple[str, ...]:
    if given is not None and not isinstance(given, (str, tuple, list)):
        raise UsageError(f"roles={given!r}", want='an axis or several, as "pp" or ("pp", "ep")')
    roles = axis_names(given)
    for axis in roles:
        if axes is None or axis not in axes:
            raise _no_axis(f"roles={given!r}", axes or ())
        if axis in data:
            raise UsageError(f"{axis} is an axis of roles= and of data=", want="one of the two")
    if roles and check == "full":
        raise UsageError(
            'check="full" with roles=',
            why="its simulated ranks all run one program",
            fix='check="types", which judges a role\'s program along the other axes',
        )
    return roles


def _passes(given: dict[str, Any]) -> dict[str, int]:
    """The passes; with roles none, whose other programs wait for this one's collectives."""
    asked = asked_for(given["passes"], given["backend"])
    if given["roles"] and given["passes"] and asked:
        raise UsageError(
            "passes= with roles=",
            why="ranks of other roles wait for a program's collectives in their order",
            fix="leave one of them out",
        )
    return {} if given["roles"] else asked


def _refuse_store(store: Any) -> None:
    from lockstep.fleet.store import local_path

    if store is not None and not isinstance(store, (str, os.PathLike)):
        raise UsageError(f"store={store!r}", want="a directory, a URL, or one artifact's file")
    if store is not None:
        local_path(store)


def _no_axis(what: str, axes: tuple[str, ...] | None) -> UsageError:
    return UsageError(
        f"{what} names no axis of the mesh",
        want=f"one of {list(axes)}" if axes is not None else "the name of an axis",
        fix="mesh=ls.mesh(dp=-1)" if axes == () else None,
    )
