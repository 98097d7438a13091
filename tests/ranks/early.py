"""The script of one rank: steps that reach an int which was read of the rank before, run twice.

A name on the command line picks the step. Its first call is compared with eager, to the bit; then
what was read is changed on every rank, and the step is called and compared again.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls
from lockstep.build.artifact import read_manifest
from tests.bitwise.own import OwnCompile
from tests.rank_reads.judge import same
from tests.rank_reads.vocab import EarlyVocab, vocabulary
from tests.rank_reads.vocab import train as train_words
from tests.ranks.launch import Here

X = torch.arange(64.0).reshape(16, 4)


class Window(nn.Module):
    """Each rank works on rows of its own, whose bounds its constructor computed."""

    def __init__(self) -> None:
        super().__init__()
        self.start = dist.get_rank() * 2
        self.bounds = [(self.start, self.start + 2)]
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        first, end = self.bounds[0]
        return (x[self.start : self.start + 2] * self.weight + x[first:end]).sum() + self.start

    def moved(self, by: int) -> None:
        self.start += by
        self.bounds[0] = (self.start, self.start + 2)


class Middle(nn.Module):
    """Only one rank differs, and it is none of the ends."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 4 * (dist.get_rank() == 1)

    def forward(self, x: Tensor) -> Tensor:
        return x.narrow(0, self.start, 4)  # the line


class Branch(nn.Module):
    """Python decides by what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = dist.get_rank()

    def forward(self, x: Tensor) -> Tensor:
        if self.stage == 0:  # the line
            x = x * 2
        return x


class Mixed(nn.Module):
    """What differs besides has no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.scale = dist.get_rank(), 1.0 + dist.get_rank()

    def forward(self, x: Tensor) -> Tensor:
        return x[self.start] * self.scale  # the line


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x)
    if isinstance(model, Window):
        loss.backward()
    return loss


def result_of(step: Any, model: nn.Module) -> list[Any]:
    model.zero_grad()
    loss = step(model, X.clone())
    return [loss.tolist(), *(p.grad.tolist() for p in model.parameters() if p.grad is not None)]


def words(mesh: Any, backend: str) -> dict[str, Any]:
    """Train the language model: the shipped program against eager and against an own compile."""
    ways = {"eager": vocabulary, "shipped": ls.compile(mesh=mesh, backend=backend)(vocabulary)}
    if backend == "inductor":
        ways["own"] = OwnCompile(vocabulary)
    found = {}
    for name, step in ways.items():
        torch.manual_seed(0)
        found[name] = train_words(step, EarlyVocab(mesh, "dp"))
    wanted = found["own" if "own" in found else "eager"]
    pairs = list(zip(found["shipped"], wanted, strict=True))
    eager = zip(found["shipped"], found["eager"], strict=True)
    near = all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in eager)
    return {"equal": [*(same(*pair) for pair in pairs), near]}


if __name__ == "__main__":
    here = Here()
    mesh = ls.mesh("cpu", dp=-1)
    if sys.argv[1] == "words":
        here.result(words(mesh, sys.argv[2]))
        sys.exit()
    model = {"window": Window, "once": Window, "middle": Middle, "branch": Branch, "mixed": Mixed}[
        sys.argv[1]
    ]()
    step = ls.compile(mesh=mesh, backend=sys.argv[2], check="off")(train)
    equal = []
    for by in (0, 3) if sys.argv[1] == "window" else (0,):
        if by:
            model.moved(by)
        eager = result_of(train, model)
        equal += [result_of(step, model) == eager, model.start == dist.get_rank() * 2 + by]
    paths = sorted(() if sys.argv[1] != "window" else (here.folder / "store").glob("*.lockstep"))
    early = [read_manifest(path)["early"] for path in paths]
    here.result({"equal": equal, "early": early})
