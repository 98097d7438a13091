"""The script of one rank: megatron-core's programs as a job builds them, each against eager."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch

warnings.filterwarnings("ignore")  # the packages' own, about kernels and devices

import lockstep as ls  # noqa: E402
from tests.clients import megatron  # noqa: E402
from tests.rank_reads.judge import same  # noqa: E402
from tests.ranks.launch import Here  # noqa: E402


def results_of(step: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The loss and all gradients of one call."""
    loss = step(*args).detach()
    return [loss, *(p.grad for p in args[0].parameters() if p.grad is not None)]


here = Here()
mesh = ls.mesh("cpu", tp=-1)
equal: dict[str, bool] = {}
for program in megatron.PROGRAMS:
    compiled = ls.compile(mesh=mesh, backend="graph")(program.step)
    torch.manual_seed(0)
    args = program.make(mesh)
    kept = copy.deepcopy(args[0].state_dict())
    got = results_of(compiled, args)
    args = program.make(mesh)
    args[0].load_state_dict(kept)
    eager = results_of(program.step, args)
    equal[program.name] = len(got) == len(eager) and all(map(same, got, eager))
here.result(equal)
