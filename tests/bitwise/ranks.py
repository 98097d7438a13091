"""The script of one rank: run every case both ways, and leave what was found.

torchrun ... -m tests.bitwise.ranks [quick]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.ranks.launch import Here

here = Here()
# What a rank compiles for itself, it does not take from the rank that builds: graphs are lowered
# anew each time, and of two neighbours each has libraries of its own.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{os.environ['CACHES']}/{here.rank % 2}"
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import lockstep as ls  # noqa: E402
from tests.bitwise import cases, training  # noqa: E402
from tests.bitwise.compare import (  # noqa: E402
    History,
    count,
    first_difference,
    largest_difference,
)
from tests.bitwise.own import OwnCompile  # noqa: E402

mesh = ls.mesh(dp=-1)
rows: list[dict[str, Any]] = []
GRAPH, INDUCTOR, TWIN = "graph = eager", "inductor = own compile", "another seed differs"


def compiled(step: Callable[..., Any], backend: str) -> Any:
    later = {"dp": "mean"} if step is training.micro_step else None  # the last one reduces for all
    return ls.compile(step, mesh=mesh, data="dp", backend=backend, pending=later)


def note(case: str, claim: str, odd: str | None, values: int, begin: float, **more: Any) -> None:
    """Keep a finding; `odd` says what speaks against the claim."""
    seconds = time.monotonic() - begin
    row = {"case": case, "claim": claim, "odd": odd, "values": values, "seconds": seconds}
    rows.append({**row, **more})
    here.result(rows)  # so that what was found before an end is there to be read


def against_eager(case: str, run: Callable[..., History], *steps: Callable[..., Any]) -> None:
    """Run a case eagerly and under `graph`."""
    begin = time.monotonic()
    eager = run(*steps)
    graph = run(*(compiled(step, "graph") for step in steps))
    note(case, GRAPH, first_difference(eager, graph), count(eager), begin)


def trainings(inside: bool, orders: int, steps: int, backends: tuple[str, ...]) -> None:
    """Train in each data order with every back end, the optimizer inside the step or outside."""
    function = training.whole_step if inside else training.loss_step
    place = "inside" if inside else "outside"
    ways = {backend: compiled(function, backend) for backend in backends}
    own = OwnCompile(function)
    for order in range(orders):
        case = f"{steps} steps, AdamW {place}, data order {order + 1}"
        begin = time.monotonic()
        eager = training.train(function, inside, order, steps)
        graph = training.train(ways["graph"], inside, order, steps)
        note(case, GRAPH, first_difference(eager, graph), count(eager), begin)
        if "inductor" in ways:
            begin = time.monotonic()
            shared = training.train(ways["inductor"], inside, order, steps)
            alone = training.train(own, inside, order, steps)
            gaps = {k: largest_difference(eager, shared, k) for k in ("loss", "grad", "param")}
            found = first_difference(alone, shared)
            note(case, INDUCTOR, found, count(shared), begin, place=place, gaps=gaps)


def twin(steps: int) -> None:
    """The comparison can fail: another seed is told."""
    begin = time.monotonic()
    step = compiled(training.loss_step, "graph")
    runs = [training.train(step, False, 0, steps, seed) for seed in (0, 1)]
    odd = None if first_difference(*runs) else "another seed gave the same bits"
    note(f"twin: {steps} steps, two seeds", TWIN, odd, count(runs[0]), begin)


def everything() -> None:
    """All that the issue of the main job asks for."""
    trainings(False, 2, 20, ("graph", "inductor"))
    trainings(True, 2, 20, ("graph", "inductor"))
    train, evaluate = training.loss_step, training.eval_step
    against_eager("train, eval, train", cases.evaluate_between, train, evaluate)
    against_eager("a layer frozen at step 5", cases.freeze_at_five, train)
    against_eager("autocast to bf16 toggled", cases.toggle_autocast, train)
    against_eager("4 micro-steps, last reduces", cases.four_micro_steps, training.micro_step)
    against_eager("forward only, inference mode", cases.infer, training.infer_step)
    twin(3)


def quick() -> None:
    """What every run of the tests can afford."""
    trainings(False, 1, 3, ("graph",))
    against_eager("forward only, inference mode", cases.infer, training.infer_step)
    twin(2)


if __name__ == "__main__":
    (quick if "quick" in sys.argv else everything)()
