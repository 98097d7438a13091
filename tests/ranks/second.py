"""Steps whose ranks capture one graph, or not: a number of each rank lies where none sees it."""

from __future__ import annotations

import functools
import sys

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from lockstep.build.artifact import read_manifest
from lockstep.build.describe import describe
from tests.ranks.launch import Here


@functools.lru_cache
def rank() -> int:
    return dist.get_rank()


def reads_inside(x: Tensor) -> Tensor:
    return x * (1 + dist.get_rank())


def offset(x: Tensor) -> Tensor:
    return x.narrow(0, rank() * 2, 2) + rank()  # the line


def role(x: Tensor) -> Tensor:
    x = x * 2
    if rank() == 1:
        x = x + 1  # the line
    return x


def fails(x: Tensor) -> Tensor:
    if rank() == 1:
        raise ValueError("rank 1 alone")
    return x * 2


def kept_by_a_cache(x: Tensor) -> Tensor:
    rank.cache_clear()
    return x * rank()  # the line


here = Here()
mesh = ls.mesh("cpu", dp=-1)
rank()
step = ls.compile(mesh=mesh, backend="graph", check="off")(globals()[sys.argv[1]])
made = step(torch.ones(4))
(path,) = (here.folder / "store").glob("*.lockstep")
shown = [line for line in describe(path).splitlines() if "compared  " in line]
here.result({"value": made.tolist(), "compared": read_manifest(path)["compared"], "shown": shown})
