"""Cases with their printed fixes pasted in, on real gloo ranks against the one-process references.

    python -m tests.faults.pasted FOLDER < jobs.json

A process of its own forks the ranks, since one that ran a backward cannot.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

TOLERANCE = 1e-9
TIMEOUT = 60.0


def worst_errors(folder: Path, fixes: dict[str, tuple[str, str]]) -> dict[str, float]:
    """Run wrong programs with a line replaced, on every rank.

    Args:
        fixes: case -> ("file:number", the line that takes its place).

    Returns:
        case -> the largest relative error of what it gives; infinite where it did not run.
    """
    command = [sys.executable, "-m", "tests.faults.pasted", str(folder)]
    done = subprocess.run(command, input=json.dumps(fixes), capture_output=True, text=True)
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode:
        print(done.stdout, done.stderr[-2000:])
        return dict.fromkeys(fixes, float("inf"))
    return json.loads(last)


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
        ranks = [context.Process(target=_rank, args=(r, *shared)) for r in range(world)]
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

    torch.set_num_threads(1)
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
        print(f"{case.__name__}, rank {rank}: {type(failure).__name__}: {failure}", file=sys.stderr)
        error = float("inf")
    answers.put(float(error))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> None:
    """Print the errors of the cases that standard input names, as JSON."""
    from tests.faults.cases import adapter, cases_in

    fixes = json.load(sys.stdin)
    cases = {Path(case.__file__).stem: case for case in cases_in(folder)}
    loaded = adapter()
    print(json.dumps({name: worst_error(cases[name], loaded, *fix) for name, fix in fixes.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
