"""Two stages of a pipeline as declared roles; it tells what it computed.

python -m tests.ranks.roles [twin]
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep as ls

mesh = ls.mesh("cpu", pp=2, dp=2)
pipe = mesh.get_group("pp")


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).tanh()


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


@ls.compile(mesh=mesh, data="dp", roles="pp", backend="graph")
def first_step(model: First, x: Tensor) -> Tensor:
    hidden = model(x)
    sent = hidden.detach().clone()
    dist.all_reduce(sent, group=pipe)  # the last stage adds nothing
    loss = ls.loss(hidden.square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


@ls.compile(mesh=mesh, data="dp", roles="pp", backend="graph")
def last_step(model: Last, x: Tensor) -> Tensor:
    hidden = torch.zeros(x.shape[0], 8)
    dist.all_reduce(hidden, group=pipe)
    loss = ls.loss(model(hidden).square().mean(), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


@ls.compile(mesh=mesh, data="dp", roles="pp", backend="graph")
@torch.no_grad()
def eval_step(model: nn.Module, x: Tensor) -> Tensor:
    """One function; each stage goes its own way in it."""
    if mesh.get_local_rank("pp") == 0:
        sent = model(x)
        dist.all_reduce(sent, group=pipe)
        return sent.sum()
    hidden = torch.zeros(x.shape[0], 8)
    dist.all_reduce(hidden, group=pipe)
    return model(hidden).sum()


def called(step: Callable[..., Any], model: nn.Module, x: Tensor) -> Tensor:
    """Call a step; with "twin" after its eager twin on a copy, whose numbers must be the same."""
    twin = copy.deepcopy(model)
    want = step.step.function(twin, x) if "twin" in sys.argv else None  # type: ignore[attr-defined]
    got = step(model, x)
    if want is not None:
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        made = [(p.grad, q.grad) for p, q in pairs if q.grad is not None]  # copies lack others
        assert torch.equal(got, want) and all(torch.equal(*grads) for grads in made)
    return got


def main() -> None:
    """Two steps of each stage, and an evaluation."""
    stage, place = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    torch.manual_seed(0)
    model, step = (First(), first_step) if stage == 0 else (Last(), last_step)
    torch.manual_seed(1 + place)
    for number in range(2):
        model.zero_grad()
        loss = called(step, model, torch.randn(4, 4))
        print(f"loss {number} {loss.item():.6f}")
    print(f"eval {called(eval_step, model, torch.randn(4, 4)).item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
