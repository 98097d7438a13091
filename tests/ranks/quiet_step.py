"""Train a small step on real ranks, and leave what was traced, lowered, compiled and started."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import lockstep as ls
from tests.counters import counting
from tests.ranks.launch import Here

here = Here()


def modules(prefix: str) -> int:
    return sum(name == prefix or name.startswith(f"{prefix}.") for name in sys.modules)


# "methods" counts calls of torch's compiler, which that imports; "imports" imports nothing
with counting(load_compiler=sys.argv[1] == "methods") as counts:
    mesh = ls.mesh("cpu", dp=-1)

    @ls.compile(mesh=mesh, data="dp")
    def step(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = ls.loss(model(x).square().mean(), dp="mean")
        loss.backward()
        ls.reduce_grads(model, dp="mean")
        return loss

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1))
    torch.manual_seed(1 + here.rank)
    losses = []
    for _ in range(3):
        losses.append(step(model, torch.randn(8, 4)).item())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None

here.result(
    {
        "counts": vars(counts),
        "inductor modules": modules("torch._inductor"),
        "dynamo modules": modules("torch._dynamo"),
        "losses": losses,
        "bound": [float(p.detach().sum()) for p in model.parameters()],
    }
)
dist.destroy_process_group()
