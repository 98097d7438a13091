"""Mesh axes and their logical group names.

A graph that names its groups "dp" or "tp" fits every rank, since each rank has registered its own
group under that name. torch's own group names are per-process counters and differ between ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lockstep import _compat
from lockstep.errors import UsageError
from lockstep.spmd.start import meet

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

WORLD = "world"
SIZES = "LOCKSTEP_MESH"  # "dp=2,tp=1": `lockstep ... --mesh`, in place of a script's own sizes


@dataclass(frozen=True)
class Axis:
    """One mesh axis on this rank: its logical name, its ranks (global numbers) and its group."""

    name: str
    ranks: tuple[int, ...]
    group: dist.ProcessGroup

    @property
    def size(self) -> int:
        return len(self.ranks)


_axes: dict[str, Axis] = {}


def mesh(device_type: str | None = None, **sizes: int) -> DeviceMesh:
    """Make a named mesh over all ranks and register its axes under their names.

    Under torchrun the default process group is initialised when it is not yet; in a plain process
    the world has one rank. Collective over all ranks.

    Args:
        device_type: "cpu" or an accelerator's; by default the accelerator where there is one.
        sizes: ranks along each axis, outermost first; one of them may be -1 and takes what is left.

    Returns:
        A `DeviceMesh` whose dimension names are the axes.

    Raises:
        UsageError: the sizes do not fit the number of ranks, or an axis exists with other ranks.

    Example:
        >>> mesh = ls.mesh(dp=-1)                                            # doctest: +SKIP
    """
    from torch.distributed.device_mesh import init_device_mesh

    device_type = device_type or default_device_type()
    start_process_group(device_type)
    shape = _fit(overridden(sizes), dist.get_world_size())
    made = init_device_mesh(device_type, tuple(shape.values()), mesh_dim_names=tuple(shape))
    register(made)
    return made


def overridden(sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of a mesh, those that `$LOCKSTEP_MESH` names in place of the script's.

    Raises:
        UsageError: the variable holds something else.
    """
    wanted = parse_sizes(os.environ.get(SIZES, ""), SIZES)
    return {name: wanted.get(name, size) for name, size in sizes.items()}


def parse_sizes(text: str, where: str) -> dict[str, int]:
    """Read "dp=2,tp=1"; `where` is named if it is something else.

    Raises:
        UsageError: it is.

    Example:
        >>> parse_sizes("dp=2,tp=1", "--mesh")
        {'dp': 2, 'tp': 1}
    """
    sizes: dict[str, int] = {}
    for word in filter(None, text.split(",")):
        name, _, size = word.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1 or name in sizes:
            raise UsageError(f"{where}: {text!r}", got=word, want="sizes by axis, as dp=2,tp=1")
        sizes[name] = int(size)
    return sizes


def default_device_type() -> str:
    """Return the accelerator's type, or "cpu"."""
    return (
        torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    )


def start_process_group(device_type: str = "cpu") -> None:
    """Initialise the default group: from torchrun's environment, else as a world of one."""
    if dist.is_initialized():
        return
    backend = "gloo"
    if device_type != "cpu":
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
        backend = f"cpu:gloo,{device_type}:{dist.get_default_backend_for_device(device_type)}"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        _start_below_agent(backend)
    elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())


def _start_below_agent(backend: str) -> None:
    """Initialise it apart from an earlier start, whose addresses torchrun's store still holds."""
    store, rank, world = next(iter(dist.rendezvous("env://")))
    apart = dist.PrefixStore(meet(store, rank, world), store)
    dist.init_process_group(backend, store=apart, rank=rank, world_size=world)


def _fit(sizes: dict[str, int], world: int) -> dict[str, int]:
    """Fill in the axis of size -1 and check the product."""
    if not sizes:
        raise UsageError("a mesh needs an axis", fix="ls.mesh(dp=-1)")
    free = [name for name, size in sizes.items() if size == -1]
    fixed = 1
    for name, size in sizes.items():
        if type(size) is not int or (size != -1 and size < 1):
            raise UsageError(
                f"mesh axis {name} cannot have {size!r} ranks", want="1 or more, or -1"
            )
        fixed *= size if size != -1 else 1
    if len(free) > 1 or world % fixed or (not free and fixed != world):
        shown = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(
            f"the mesh {shown} does not fit the job",
            got=f"{world} rank(s); the fixed axes need a multiple of {fixed}",
            want="axes whose product is the number of ranks, at most one of them -1",
            fix=f"--world-size {fixed}, or --mesh with the sizes of all axes"
            if os.environ.get(SIZES)
            else "start torchrun with another --nproc-per-node, or change the sizes",
        )
    return {name: world // fixed if size == -1 else size for name, size in sizes.items()}


def register(made: DeviceMesh) -> dict[str, Axis]:
    """Register the groups of a mesh under its dimension names, and the world's as "world".

    Raises:
        UsageError: the mesh has unnamed dimensions, or a name stands for other ranks already.
    """
    if not made.mesh_dim_names:
        raise UsageError(
            "the mesh has no names for its dimensions",
            got=str(made),
            fix="init_device_mesh(..., mesh_dim_names=('dp', 'tp')), or ls.mesh(dp=-1, tp=2)",
        )
    axes = {name: _register(name, made.get_group(name)) for name in made.mesh_dim_names}
    world = dist.group.WORLD
    if world is not None and WORLD not in axes:
        _register(WORLD, world)
    return axes


def _register(name: str, group: dist.ProcessGroup) -> Axis:
    ranks = tuple(dist.get_process_group_ranks(group))
    known = _axes.get(name)
    if known is not None and known.group is group:
        return known
    if known is not None and known.ranks != ranks and dist.is_initialized() and _alive(known.group):
        raise UsageError(
            f"mesh axis {name} already stands for other ranks",
            got=f"ranks {list(ranks)}",
            want=f"ranks {list(known.ranks)}",
            fix="give the axes of the second mesh other names",
        )
    _compat.register_process_group(name, group)
    _axes[name] = Axis(name, ranks, group)
    return _axes[name]


def _alive(group: dist.ProcessGroup) -> bool:
    """Whether the group belongs to the process groups that exist now."""
    return _compat.group_exists(group)


def axis(name: str) -> Axis:
    """Return a registered axis.

    Raises:
        UsageError: no mesh with such an axis was made.
    """
    if name not in _axes:
        raise UsageError(
            f"there is no mesh axis {name}",
            got=str(name),
            want=f"one of {sorted(_axes) or 'none: no mesh was made yet'}",
            fix=f"ls.mesh({name}=-1) before the first use",
        )
    return _axes[name]


def axis_of(group: dist.ProcessGroup | str | None) -> Axis | None:
    """Return the axis that a process group (or its name; None: the world) stands for, if any.

    A group that someone else made, as a library does for itself, is the axis of the same ranks on
    the same backend. The world's group is an axis of its own only where no single axis covers the
    same ranks.
    """
    if isinstance(group, str):
        if group in _axes:
            return _preferred(_axes[group].ranks)
        group = _compat.resolve_process_group(group)
    group = group or dist.group.WORLD
    if group is None:
        return None
    for candidate in _axes.values():
        if candidate.group is group:
            return _preferred(candidate.ranks)
    for candidate in _axes.values():
        if _alive(candidate.group) and _alike(candidate.group, group):
            return _preferred(candidate.ranks)
    return None


def _alike(one: dist.ProcessGroup, other: dist.ProcessGroup) -> bool:
    """Whether two groups have the same ranks in the same order, on the same backend."""
    if dist.get_process_group_ranks(one) != dist.get_process_group_ranks(other):
        return False
    return dist.get_backend_config(one) == dist.get_backend_config(other)


def _preferred(ranks: tuple[int, ...]) -> Axis:
    """Of several names for the same ranks, the mesh axis before the word "world"."""
    same = [a for a in _axes.values() if a.ranks == ranks]
    return next((a for a in same if a.name != WORLD), same[0])


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Know no axes at first while inside, and forget those made there: for a simulated job."""
    real = dict(_axes)
    for name in real:
        _compat.unregister_process_group(name)
    _axes.clear()
    try:
        yield
    finally:
        for name in _axes:
            _compat.unregister_process_group(name)
        _axes.clear()
        _axes.update(real)
        for name, known in real.items():
            _compat.register_process_group(name, known.group)
