"""Private names of torch's FSDP2 (`fully_shard`) that Lockstep uses; the rest of `_compat.py`.

Read in torch 2.14.1. Nothing here is imported before a model was wrapped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

_WHERE = "torch.distributed.fsdp._fully_shard."
_SET = (
    "reduce_grads", "all_reduce_grads", "reshard_after_backward", "unshard_in_backward",
    "gradient_divide_factor", "force_sum_reduction_for_comms", "reduce_scatter_unused_params",
)  # fmt: skip


def state_of(module: Any) -> Any:
    """What `fully_shard` keeps for a module, and no part of another's; None: it was not called.

    Of several that it was called with at once, the first one has it.
    """
    there = sys.modules.get(_WHERE + "_fsdp_state")
    state = there._get_module_fsdp_state(module) if there is not None else None
    return state if state is not None and state._modules[0] is module else None


def is_state(value: Any) -> bool:
    """Whether it is what hooks of `fully_shard` belong to, which a contract tells in words."""
    there = sys.modules.get(_WHERE + "_fsdp_state")
    return there is not None and isinstance(value, there.FSDPState)


def ready(state: Any) -> None:
    """Do what its first forward does once, and put the shards back that an evaluation has left
    whole: a program's inputs are shards. The outermost wrapped module comes first."""
    state._lazy_init()
    for module in state._modules:
        module.reshard()


def modules(state: Any) -> list[Any]:
    """The modules that `fully_shard` was called with."""
    return [*state._modules]


def precision(state: Any) -> str:
    """Its policy of mixed precision, in words."""
    return str(state._mp_policy)


def around_forward() -> tuple[Any, Any]:
    """What it does before and after a module's forward: hooks, and no public names."""
    kind = sys.modules[_WHERE + "_fsdp_state"].FSDPState
    return kind._pre_forward, kind._post_forward


def by_hand() -> tuple[Any, Any]:
    """Its public methods that gather and cut a module where the user says so."""
    kind = sys.modules[_WHERE + "_fully_shard"].FSDPModule
    return kind.unshard, kind.reshard


def is_there() -> bool:
    """Whether anything has imported it."""
    return _WHERE + "_fully_shard" in sys.modules


def groups(state: Any) -> list[Any]:
    """The groups of parameters that are gathered and reduced together: one, if any, as a rule."""
    found: list[Any] = state._fsdp_param_groups
    return found


def cast_inputs(state: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The inputs as its policy of mixed precision wants them."""
    found: tuple[Any, Any] = state._cast_forward_inputs(args, kwargs)
    return found


def cast_output(state: Any, output: Any) -> Any:
    """The output as its policy of mixed precision wants it."""
    return state._cast_output_dtype(output)


def unfinished(state: Any) -> bool:
    """Whether, of several modules in one `fully_shard`, only some have run their forward."""
    return bool(state._modules_to_run_forward)


def switches_of(state: Any) -> tuple[tuple[Any, ...], ...]:
    """By group what may be set between two backwards, and decides on what the next does."""
    last = state._state_ctx.is_last_backward
    return tuple(
        [(last, *[getattr(group, name) for name in _SET]) for group in state._fsdp_param_groups]
    )


def switch(state: Any, switches: Any) -> None:
    """Set what `switches_of` tells."""
    for group, (last, *values) in zip(state._fsdp_param_groups, switches, strict=True):
        state._state_ctx.is_last_backward = last
        for name, value in zip(_SET, values, strict=True):
            setattr(group, name, value)


def told(state: Any) -> tuple[Any, ...]:
    """What else decides on its program and may be set later; cheap, as it is read at every call."""
    return tuple(
        [
            (
                group.post_forward_mesh_info is None,
                group._all_reduce_hook is None,
                type(group._all_gather_comm).__name__,
                type(group._reduce_scatter_comm).__name__,
                kept(group),
            )
            for group in state._fsdp_param_groups
        ]
    )


def kept(group: Any) -> bool:
    """Whether it holds gradients that an earlier backward has not reduced."""
    if group._partial_reduce_output is not None:
        return True
    for one in group.fsdp_params:
        whole = one.__dict__.get("_unsharded_param")
        if one.unsharded_accumulated_grad is not None:
            return True
        if whole is not None and whole.grad is not None:
            return True
    return False


def places(group: Any) -> list[list[tuple[MutableMapping[str, Any], str]]]:
    """For each of its parameters the entries of modules that hold it."""
    found = []
    for one in group.fsdp_params:
        held = one._module_info
        holders = [held.module, *held.shared_modules]
        names = [held.param_name, *held.shared_param_names]
        found.append([(m._parameters, n) for m, n in zip(holders, names, strict=True)])
    return found


def dtypes(group: Any) -> tuple[list[Any], Any, Any]:
    """What each parameter is gathered in, None: its own; what gradients are reduced in, and what
    they are made after that, None: what they are."""
    return [p.param_dtype for p in group.fsdp_params], group._reduce_dtype, group._orig_dtype


def process_groups(group: Any) -> tuple[Any, Any, Any]:
    """Over which ranks it gathers, scatters, and reduces copies (HSDP); None: it does not."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common

    info = group.mesh_info
    cuts = isinstance(info, _fsdp_common.FSDPMeshInfo)
    copies = isinstance(info, _fsdp_common.DDPMeshInfo)
    return (
        info.shard_process_group if cuts else None,
        group._reduce_scatter_process_group if cuts else None,
        group._all_reduce_process_group if copies else None,
    )


def factors(group: Any, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """What gradients are divided by before and after their reductions, and by what ops."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives

    _, scatter, copies = process_groups(group)
    found: tuple[Any, Any, Any, Any] = _fsdp_collectives._get_gradient_divide_factors(
        scatter,
        copies,
        dtype,
        group.device.type,
        group.gradient_divide_factor,
        group.force_sum_reduction_for_comms,
    )
    return found


def _reduces_in(group: Any) -> Any:
    """The dtype that its gradients come to be reduced in."""
    gathered, reduced, own = dtypes(group)
    return reduced or next((dtype for dtype in gathered if dtype is not None), own)


def reshards(group: Any) -> bool:
    """Whether its parameters are cut again between forward and backward."""
    return bool(group._reshard_after_forward)


def gathers_again(group: Any) -> bool:
    """Whether a backward gathers anew what was cut after the forward."""
    return bool(group._reshard_after_forward and group.unshard_in_backward)


def unusual(state: Any) -> list[str]:
    """What makes it do something else than gather, scatter and reduce, as it is written."""
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as own

    gathers = own.DefaultAllGather, own.ProcessGroupAllocAllGather
    scatters = own.DefaultReduceScatter, own.ProcessGroupAllocReduceScatter
    found: dict[str, bool] = {}
    for group in state._fsdp_param_groups:
        held = group.fsdp_params
        local = [one._sharded_local_tensor for one in held]
        now = {
            "offload_policy=CPUOffloadPolicy()": isinstance(group.offload_policy, CPUOffloadPolicy),
            "set_custom_all_gather()": not isinstance(group._all_gather_comm, gathers),
            "set_custom_reduce_scatter()": not isinstance(group._reduce_scatter_comm, scatters),
            "set_gradient_divide_factor() without set_force_sum_reduction_for_comms(True)": any(
                op_named(op) is None for op in factors(group, _reduces_in(group))[2:]
            ),
            "set_all_reduce_hook()": group._all_reduce_hook is not None,
            "a shard_placement_fn of another dimension": any(
                one.fsdp_placement.dim != 0 for one in held
            ),
            "parameters that are DTensors already": any(one.is_dtensor for one in held),
            "parameters with fsdp_pre_all_gather": any(
                hasattr(one, "fsdp_pre_all_gather") for one in local
            ),
        }
        found.update({name: found.get(name, False) or value for name, value in now.items()})
    return [name for name, value in found.items() if value]


def grad_tensors(value: Any) -> tuple[Any, ...]:
    """The tensors in a module's inputs or output that need a gradient, as FSDP finds them."""
    from torch.distributed.fsdp._common_utils import collect_grad_tensors

    return collect_grad_tensors(value)


def with_grad_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    """The same value with others in the place of these tensors."""
    from torch.distributed.fsdp._common_utils import replace_grad_tensors

    return replace_grad_tensors(value, tensors)


def as_leaf(tensor: torch.Tensor, needs_grad: bool) -> Any:
    """A computed tensor as a parameter: `Parameter(...)` would make another one, outside of what
    a replay with gradients follows."""
    tensor.requires_grad_(needs_grad)
    tensor._is_param = True  # type: ignore[attr-defined]
    return tensor


def writes_into(tensor: Any) -> int:
    """How often a tensor was written into."""
    count: int = tensor._version
    return count


def saving_hooks() -> Any:
    """The hooks that take what autograd saves now, the innermost; None: it saves tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def in_backward() -> bool:
    """Whether autograd runs a backward on this thread."""
    return torch._C._current_graph_task_id() != -1


def op_named(op: Any) -> str | None:
    """A reduction's name in a graph; None for one that has none, as a product with a factor."""
    kinds = torch.distributed.ReduceOp
    return next((n for n, known in (("sum", kinds.SUM), ("avg", kinds.AVG)) if op == known), None)
