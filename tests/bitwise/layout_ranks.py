"""The script of one rank: train every layout of this many ranks in all ways, and compare.

torchrun ... -m tests.bitwise.layout_ranks first|again|quick [LAYOUT ...]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ranks.launch import Here

here = Here()
# What a rank compiles for itself, it does not take from the rank that builds.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{os.environ['CACHES']}/{here.rank % 2}"
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import lockstep as ls  # noqa: E402
from lockstep.spmd.mesh import apart  # noqa: E402
from tests.bitwise import layouts  # noqa: E402
from tests.bitwise.compare import History, count, first_difference  # noqa: E402
from tests.bitwise.own import OwnCompile  # noqa: E402
from tests.parallel.layouts import CASES, NARROW, Case, step  # noqa: E402

NEAR_64, NEAR_32 = 1e-11, 1e-5
GRAPH, OWN, AGAIN = "graph = eager", "inductor = own compile", "inductor = its first start"
NEAR = "as one process"
rows: list[dict[str, Any]] = []
how = sys.argv[1]


def note(case: Case, claim: str, odd: str | None, begin: float, values: int = 0) -> None:
    """Keep a finding; `odd` says what speaks against the claim."""
    seconds = time.monotonic() - begin
    rows.append(
        {"case": case.name, "claim": claim, "odd": odd, "values": values, "seconds": seconds}
    )
    here.result(rows)


def compared(case: Case, claim: str, one: History, run: Callable[[], History]) -> History:
    """Run another way and tell the first difference."""
    begin = time.monotonic()
    other = run()
    note(case, claim, first_difference(one, other), begin, count(one))
    return other


def layout(case: Case) -> None:
    """All ways of one layout."""
    mesh = ls.mesh(**case.mesh)
    run = layouts.Training(case, 3, NARROW) if how == "quick" else layouts.Training(case)

    def compiled(backend: str) -> Callable[[], History]:
        made = ls.compile(step, mesh=mesh, data=case.data, backend=backend)
        return lambda: layouts.train(run, mesh, made, torch.float32)

    kept = Path(os.environ["CACHES"]) / f"{case.name} {dist.get_rank()}.pt"
    if how == "again":
        compared(case, AGAIN, torch.load(kept), compiled("inductor"))
        return
    eager = layouts.train(run, mesh, step, torch.float32)
    compared(case, GRAPH, eager, compiled("graph"))
    near_one_process(run, mesh, eager)
    if how == "quick":
        return
    own = OwnCompile(step)
    alone = layouts.train(run, mesh, own, torch.float32)
    shared = compared(case, OWN, alone, compiled("inductor"))
    torch.save(shared, kept)


def near_one_process(run: layouts.Training, mesh: Any, eager: History) -> None:
    """Compare the last loss with one process', in f64 and, without a router, in f32."""
    begin = time.monotonic()
    with layouts.left_wide():
        wide = layouts.train(run, mesh, step, torch.float64)
        gap_64 = layouts.apart(wide, layouts.train_alone(run, torch.float64))
    gap_32 = layouts.apart(eager, layouts.train_alone(run, torch.float32))
    far = gap_64 > NEAR_64 or (gap_32 > NEAR_32 and not run.case.experts)
    odd = f"{gap_64:.1e} in f64, {gap_32:.1e} in f32" if far else None
    note(run.case, NEAR, odd, begin)
    rows[-1]["gaps"] = {"f64": gap_64, "f32": gap_32}
    here.result(rows)


for case in CASES:
    if case.ranks == int(os.environ["WORLD_SIZE"]) and (not sys.argv[2:] or case.name in sys.argv):
        with apart():  # of two names for the same ranks, a group would give the first
            layout(case)
