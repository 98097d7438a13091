"""How a Mixtral is laid out over a mesh: experts along `ep`, copies or shards along `dp`, `fsdp`.

Tokens differ along all three axes; all that is no expert is a copy along `ep`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lockstep.models import mixtral
from lockstep.parallel.divides import Divided, refuse_uneven, refuse_unknown
from lockstep.parallel.expert import balanced, dispatched
from lockstep.parallel.fully_sharded import fully_shard
from lockstep.parallel.layout import Layout, layout
from lockstep.parallel.placement import Table, place
from lockstep.parallel.precision import compute_in
from lockstep.parallel.recompute import recompute
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.mesh import register
from lockstep.spmd.types import R, S

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

AXES = ("dp", "fsdp", "ep")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a mesh does not say by itself; as the fields of a Llama's plan."""

    regather: bool = False
    recompute: bool = False
    dtype: torch.dtype | None = None


def table(sizes: Mapping[str, int]) -> Table:
    """Return the placement of every parameter along the axes of a mesh, but for `fsdp`'s S(0)."""
    copies = {axis: R for axis in ("dp", "ep") if axis in sizes}
    return {"*": copies, "*.experts.w?": {"ep": S(0)} if "ep" in sizes else {}}


def refuse(
    config: mixtral.Config,
    sizes: Mapping[str, int],
    plan: Plan,
    *,
    batch: int | None = None,
    tokens: int | None = None,
) -> None:
    """Refuse a mesh that does not divide a model or its batches; needs no process group.

    Args:
        config: the model's.
        sizes: axis -> ranks.
        plan: as for `parallelize`.
        batch: sequences of the whole job a step, where known.
        tokens: of one sequence; any number will do.

    Raises:
        UsageError: an axis that no plan has, or what does not divide.
    """
    refuse_unknown(sizes, AXES, "a Mixtral")
    ep = sizes.get("ep", 1)
    asked = [Divided("experts", config.experts, ep, f"ep={ep}")]
    if batch is not None:
        over = " x ".join(f"{axis}={size}" for axis, size in sizes.items())
        asked.append(Divided("sequences a step", batch, math.prod(sizes.values()), over))
    refuse_uneven(asked)


def parallelize(
    model: mixtral.Mixtral, mesh: DeviceMesh, plan: Plan | None = None
) -> mixtral.Mixtral:
    """Lay a Mixtral out over a mesh, in place; nothing communicates.

    Args:
        model: whole, and the same on every rank: the same seed before it was made.
        mesh: with axes of the names above, in any order.
        plan: what the mesh does not say.

    Returns:
        The model, as `llama_plan.parallelize` has it.

    Raises:
        UsageError: as `refuse`.
    """
    plan = plan or Plan()
    register(mesh)
    sizes = {axis: axis_named(axis).size for axis in mesh.mesh_dim_names or ()}
    refuse(model.config, sizes, plan)
    place(model, table(sizes))
    if "ep" in sizes:
        for block in model.layers:
            dispatched(block.feed_forward.experts, "ep", model.config.experts // sizes["ep"])
    if "fsdp" in sizes:
        fully_shard(model, "fsdp", dtype=plan.dtype, regather=plan.regather)
    elif plan.dtype is not None:
        compute_in(model, plan.dtype)
    if plan.recompute:
        for block in model.layers:
            recompute(block)
    model.layout = Layout(tuple(axis for axis in AXES if axis in sizes))
    return model


@torch.no_grad()
def balance_experts(model: mixtral.Mixtral) -> None:
    """Move every router's biases towards an even load, and count anew; call it once a step.

    Args:
        model: made parallel; its buffers `bias` and `load` are changed.
    """
    for block in model.layers:
        mixture = block.feed_forward
        rate = model.config.balance
        mixture.bias.copy_(balanced(mixture.bias, mixture.load, rate, *layout(model).tokens))
        mixture.load.zero_()
