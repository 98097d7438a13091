"""Every private torch name that Lockstep uses, each with the version it was read in and the reason.

An upgrade of torch is a review of this file. Nothing here is imported before it is needed, so that
`import lockstep` stays cheap.
"""

from __future__ import annotations

from typing import Any


# -- process groups (torch 2.14) -------------------------------------------------------------------


def register_process_group(name: str, group: Any) -> None:
    """Give a group a logical name that graphs may hold: there is no public way to choose it."""
    from torch._C._distributed_c10d import _register_process_group

    _register_process_group(name, group)


def resolve_process_group(name: str) -> Any:
    """The group behind a name that a functional collective was given as a string."""
    from torch._C._distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def group_exists(group: Any) -> bool:
    """Whether a group is one of the live ones; a destroyed group's axis may be named anew."""
    import torch.distributed as dist

    return group in dist.distributed_c10d._world.pg_map


def default_store() -> Any:
    """The rendezvous store of the default group; `dist.rendezvous` would bind the port again."""
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def functional_collectives() -> Any:
    """The ops that graphs hold for collectives; Inductor knows them, and they take group names."""
    import torch

    return torch.ops._c10d_functional
