"""`ls.compile` takes any named DeviceMesh, in every mode."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
import lockstep as ls

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=NAMES)

@ls.compile(mesh=mesh, backend="graph")
def step(model, x):
    loss = ls.loss(model(x).sum(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss

model = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.ones_(model.weight)
print("loss", step(model, torch.ones(3, 2)).item(), model.weight.grad.tolist())
"""


def run(tmp_path, mode: str, names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("NAMES", names)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "LOCKSTEP": mode, "LOCKSTEP_STORE": str(tmp_path / "store")},
    )


@pytest.mark.parametrize("mode", ["", "off"])
def test_a_plain_device_mesh_names_the_axes(tmp_path, mode):
    done = run(tmp_path, mode, '("dp",)')
    assert "loss 6.0 [[3.0, 3.0]]" in done.stdout, done.stderr


@pytest.mark.parametrize("mode", ["", "off"])
def test_a_mesh_without_names_is_refused_where_the_step_is_made(tmp_path, mode):
    done = run(tmp_path, mode, "None")
    assert done.returncode != 0
    assert "LS001: the mesh has no names for its dimensions" in done.stderr
