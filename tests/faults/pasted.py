"""A case with a printed fix pasted in, run on real gloo ranks against its one-process reference."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

TOLERANCE = 1e-9
TIMEOUT = 60.0


def edited(case: Any, line: str, text: str) -> ModuleType:
    """Return the case as a module of its own, with one line replaced and Lockstep's names in it."""
    import lockstep

    rows = Path(case.__file__).read_text().split("\n")
    at = int(line.rpartition(":")[2]) - 1
    rows[at] = rows[at][: len(rows[at]) - len(rows[at].lstrip())] + text
    module = ModuleType(f"{case.__name__}_pasted")
    module.__dict__.update(ls=lockstep, __file__=case.__file__)
    module.__dict__.update({name: getattr(lockstep, name) for name in "IPRSV"})
    exec(compile("\n".join(rows), case.__file__, "exec"), module.__dict__)
    return module


def worst_error(case: Any, adapter: Any, line: str, text: str) -> float:
    """Run the wrong program with the fix on every rank; return the largest relative error."""
    world = torch.Size(case.MESH.values()).numel()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.SimpleQueue()
        shared = (world, folder, answers, case, adapter, line, text)
        ranks = [
            context.Process(
                target=_rank, args=(r, world, folder, case, adapter, line, text, answers)
            )
            for r in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(TIMEOUT)
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
        found = []
        while not answers.empty():
            found.append(answers.get())
    return max(found) if len(found) == world else float("inf")


def _rank(
    rank: int, world: int, folder: str, answers: Any, case: Any, adapter: Any, line: str, text: str
) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from lockstep.spmd import mesh as axes

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    torch.set_default_dtype(torch.float64)
    mesh = init_device_mesh("cpu", tuple(case.MESH.values()), mesh_dim_names=tuple(case.MESH))
    axes.register(mesh)
    torch.manual_seed(1234)
    kit, pasted, c = importlib.import_module("_kit"), edited(case, line, text), adapter.Ours(mesh)
    try:
        leaves = pasted.setup(c)
        pasted.loss(c, leaves, True).backward()
        error, _ = kit._compare(c, pasted.finish(c, leaves, True), case.reference())
    except Exception as failure:
        print(f"{case.__name__}, rank {rank}: {type(failure).__name__}: {failure}", flush=True)
        error = float("inf")
    answers.put(float(error))
    dist.barrier()
    dist.destroy_process_group()
