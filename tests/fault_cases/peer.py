"""What spmd_types says of a program, in each of its modes, where it is installed.

It is not installed where the tests run: only `python -m tests.faults` asks it.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.fault_cases.training import Program

MODES = {"local": True, "global": False}


def said(program: Program) -> dict[str, str]:
    """Return per mode "" where it accepts the program, else what it says; empty without it."""
    if importlib.util.find_spec("spmd_types") is None:
        return {}
    return {mode: _said(program, local) for mode, local in MODES.items()}


def _said(program: Program, local: bool) -> str:
    import spmd_types
    from spmd_types import checker
    from spmd_types._mesh_axis import _reset

    world = math.prod(program.mesh.values())
    dist.init_process_group(backend="fake", rank=0, world_size=world)
    try:
        sizes = tuple(program.mesh.values())
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=tuple(program.mesh))
        model, *batch = program.make(mesh)
        _declare(spmd_types, mesh, model, batch)
        with spmd_types.set_current_mesh(mesh), checker.typecheck(local=local):
            program.step(model, *batch)
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        dist.destroy_process_group()
        _reset()


def _declare(spmd: Any, mesh: Any, model: Any, batch: list[Any]) -> None:
    """Say the same of parameters and batches as their marks and claims say to Lockstep."""
    for name, weight in model.named_parameters():
        types = dict.fromkeys(mesh.mesh_dim_names, spmd.R)
        if "tp" in types and hasattr(weight, "tensor_model_parallel"):
            whole = spmd.R if getattr(weight, "sequence_parallel", False) else spmd.I
            sharded = weight.tensor_model_parallel
            types["tp"] = spmd.S(weight.partition_dim) if sharded else whole
        spread = {"expert": "ep", "rows": "dp"}
        if name in spread:
            types[spread[name]] = spmd.S(0)
        spmd.assert_type(weight, {mesh.get_group(axis): kind for axis, kind in types.items()})
    rows = {"tp": spmd.I, "dp": spmd.S(1), "ep": spmd.S(0), "cp": spmd.S(0)}
    for part in batch:
        spmd.assert_type(part, {mesh.get_group(a): rows[a] for a in mesh.mesh_dim_names})
