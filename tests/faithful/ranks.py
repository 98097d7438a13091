"""Each case on one rank: as it is, compiled, and as it is again. Started by `__main__`.

A row is the case, what became of it, and where it is refused.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
import torch.distributed as dist

import lockstep as ls
from lockstep.errors import LockstepError
from tests.faithful import more, wrappers  # noqa: F401  (they list their cases)
from tests.faithful.cases import CALLS, CASES, World
from tests.ranks.launch import Here

RIGHT, REFUSED, WRONG, AFTER = "right", "refused", "WRONG", "WRONG AFTER"


def result(world: World, run: Any, given: tuple[Any, ...]) -> list[torch.Tensor]:
    """What one call gives: its value, gradients, buffers, what else it may change, and draws."""
    value = run(*given)
    grads = [p.grad if p.grad is not None else torch.empty(0) for p in world.model.parameters()]
    kept = [*world.model.buffers(), *world.held(), torch.get_rng_state()]
    return [copy.deepcopy(tensor.detach()) for tensor in (value, *grads, *kept)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether two results are equal to the bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


def judge(name: str, mesh: Any) -> list[str]:
    """Run a case; gives its name, what became of it, and where it is refused."""
    as_it_is = CASES[name]()
    wanted = [result(as_it_is, as_it_is.step, as_it_is.given(call)) for call in range(CALLS + 1)]
    world = CASES[name]()
    compiled = ls.compile(mesh=mesh, backend="graph", check="off")(world.step)
    found: list[list[torch.Tensor]] = []
    became, where = RIGHT, ""
    given = world.given(0)
    try:
        for call in range(CALLS):
            found.append(result(world, compiled, given))
            given = world.given(call + 1)
    except LockstepError as error:
        became, where = REFUSED, error.where or ""
    right = all(map(same, found, wanted))
    for call in range(len(found), CALLS + 1):  # the same model as it is, from where it was left
        found.append(result(world, world.step, given))
        given = world.given(call + 1) if call < CALLS else ()
    became = became if all(map(same, found, wanted)) else AFTER
    return [name, became if right else WRONG, where]


def main(names: list[str]) -> None:
    """Judge cases up to the first that is refused, which ends a job's builds; leave the rows."""
    here = Here()
    dist.init_process_group("gloo")
    mesh = ls.mesh("cpu", dp=-1)
    rows = []
    for name in names:
        rows.append(judge(name, mesh))
        if rows[-1][1] != RIGHT:
            break
    here.result(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
