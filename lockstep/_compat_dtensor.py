"""Private names of torch's DTensor and FSDP2 that Lockstep uses; the rest of `_compat.py`.

Read in torch 2.14.1. Nothing here is imported before it is needed.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is a DTensor; where nothing has imported them, none is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def is_dtensor_type(kind: type) -> bool:
    """Whether tensors of a type are DTensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and issubclass(kind, module.DTensor)


def local_of(tensor: Any) -> Any:
    """The very tensor that a DTensor has on this rank; `to_local()` makes a new one, for autograd.

    Any other tensor is itself.
    """
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def plain_order(tensor: Any) -> bool:
    """Whether a DTensor is cut in the order of its mesh; another order has no public name."""
    spec = tensor._spec
    return spec.shard_order == spec.compute_default_shard_order(spec.placements)


def dtensor_around(
    local: Any, mesh: Any, placements: Any, shape: Any, stride: Any, like: Any = None
) -> Any:
    """A DTensor around this very local tensor: `from_local` makes a view of it, and communicates.

    Args:
        like: what says whether it is a parameter, and needs a gradient; None: neither.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(torch.Size(shape), tuple(stride), local.dtype)
    spec = DTensorSpec(mesh, tuple(placements), tensor_meta=meta)
    made = DTensor(local, spec, requires_grad=like is not None and like.requires_grad)
    if isinstance(like, torch.nn.Parameter):
        made._is_param = True  # `Parameter(...)` would take a view of the local tensor
    return made


def sym_coordinate() -> Any:
    """Where DTensor asks for a rank's place on a dimension of its mesh, as a number of a trace."""
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh._sym_get_coordinate


def schema_hash() -> Any:
    """What hashes a DTensor operator's arguments, to look up how it divides them; None where no
    DTensor is there. It asks a number of the trace for its value; a TypeError says that none is
    kept (2.14.1, single_dim_strategy.py)."""
    module = sys.modules.get("torch.distributed.tensor._op_schema")
    return module.OpSchema.__hash__ if module is not None else None


def forget_divisions() -> None:
    """Empty what DTensor keeps by operator and layout: it holds the mesh of the rank that met it
    first, and a mesh of another simulated rank in this process is equal to that one (2.14.1)."""
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()
