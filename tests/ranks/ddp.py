"""Steps of models in a DDP, trained as they are and compiled; each function is a script.

torchrun ... -m tests.ranks.ddp NAME
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.capture.wrapped import ddp, reducer
from lockstep.errors import CaptureError
from tests.ranks.launch import Here

mesh = ls.mesh("cpu", dp=-1)
Step = Callable[..., Tensor]
SMALL = {"bucket_cap_mb": 0.0002}  # about 200 bytes: several buckets


class Net(nn.Module):
    """Layers, one of them transposed in memory, batch norm, and a layer that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.spare = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.up.weight = nn.Parameter(self.up.weight.detach().t().contiguous().t())
        self.spares = self.checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.up(x)).relu()
        if self.spares:
            x = (
                checkpoint(self.spare, x, use_reentrant=True)
                if self.checkpointed
                else self.spare(x)
            )
        return self.down(x)


def seeded(spares: bool = True, checkpointed: bool = False) -> Net:
    torch.manual_seed(0)
    model = Net()
    model.spares, model.checkpointed = spares, checkpointed
    return model


def batch(number: int, count: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(10 * number + dist.get_rank())
    return list(torch.randn(count, 3, 4, generator=draw).unbind(0))


def trained(step: Step, model: nn.Module, calls: int) -> list[list[Tensor]]:
    """After each call: the loss, all gradients, parameters and buffers."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for number in range(calls):
        loss = step(model, optimizer, *batch(number))
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        state = [*model.state_dict().values()]
        found.append([t.detach().clone() for t in (loss, *grads, *state)])
    return found


def differing(one: list[list[Tensor]], other: list[list[Tensor]]) -> list[int]:
    """The calls after which any tensor has other bits."""
    return [
        i
        for i, (a, b) in enumerate(zip(one, other, strict=True))
        if len(a) != len(b) or not all(map(torch.equal, a, b))
    ]


# ---- steps ---------------------------------------------------------------------------------------


def mean(loss: Tensor) -> Tensor:
    return ls.loss(loss, dp="mean")


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, _: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = mean(model(x).square().mean())
    loss.backward()
    optimizer.step()
    return loss


def kept(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, _: Tensor) -> Tensor:
    """Gradients stay tensors from call to call."""
    optimizer.zero_grad(set_to_none=False)
    loss = mean(model(x).square().mean())
    loss.backward()
    optimizer.step()
    return loss


def accumulated(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> Tensor:
    """Two parts of a batch, reduced with the second, and clipped."""
    optimizer.zero_grad()
    with model.no_sync():
        mean(model(x).square().mean() / 2).backward()
    loss = mean(model(y).square().mean() / 2)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss


def left_on(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, x: Tensor, _: Tensor
) -> Tensor:
    """Nothing is ever reduced."""
    optimizer.zero_grad()
    with model.no_sync():
        loss = mean(model(x).square().mean())
        loss.backward()
    optimizer.step()
    return loss


# ---- models --------------------------------------------------------------------------------------


def wrap(model: nn.Module, hook: Any = None, **options: Any) -> DistributedDataParallel:
    found = DistributedDataParallel(model, **{**SMALL, **options})
    if hook is not None:
        found.register_comm_hook(None, hook)
    return found


def replicated() -> nn.Module:
    from torch.distributed._composable.replicate import replicate

    return replicate(seeded(), **SMALL)


class Beside(nn.Module):
    """A layer outside of the wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = wrap(seeded())
        torch.manual_seed(1)
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wrapped(x))


CASES: dict[str, tuple[Step, Callable[[], nn.Module]]] = {
    "plain": (plain, lambda: wrap(seeded())),
    "kept": (kept, lambda: wrap(seeded(), bucket_cap_mb=25)),
    "accumulated": (accumulated, lambda: wrap(seeded())),
    "accumulated views": (accumulated, lambda: wrap(seeded(), gradient_as_bucket_view=True)),
    "unused": (plain, lambda: wrap(seeded(False), find_unused_parameters=True)),
    "static, unused": (plain, lambda: wrap(seeded(False), static_graph=True)),
    "static, reentrant": (plain, lambda: wrap(seeded(checkpointed=True), static_graph=True)),
    "own buffers": (plain, lambda: wrap(seeded(), forward_sync_buffers=False)),
    "mean hook": (plain, lambda: wrap(seeded(), default_hooks.allreduce_hook)),
    "fp16 hook": (plain, lambda: wrap(seeded(), default_hooks.fp16_compress_hook)),
    "batched": (plain, lambda: wrap(seeded(), batched_grad_copy=True)),
    "replicate": (plain, replicated),
}


# ---- scripts -------------------------------------------------------------------------------------


def compiled(step: Step, **options: Any) -> Step:
    found: Step = ls.compile(step, **{"mesh": mesh, "data": "dp", "backend": "graph", **options})
    return found


def bitwise(me: Here) -> None:
    """Of each case the calls with other bits than the wrapper's own; what is seen, and refused."""
    cases = {name: _differing(*CASES[name]) for name in sys.argv[2:] or CASES}
    me.result({"cases": cases, "divided": _divided(), "given": _given()})


def _differing(step: Step, model: Callable[[], nn.Module]) -> list[int]:
    return differing(trained(step, model(), 4), trained(compiled(step), model(), 4))


def _divided() -> list[int]:
    """The mean is taken in another way than the reducer's."""
    ddp._SENDS[""] = reducer.divided
    found = _differing(plain, lambda: wrap(seeded(), bucket_cap_mb=1))
    ddp._SENDS[""] = reducer.mean
    return found


def _given() -> str:
    """Gradients from before the step may lie in a bucket or not: a program cannot know."""
    model = wrap(seeded(), gradient_as_bucket_view=True)
    trained(kept, model, 2)
    try:
        capture(kept, model, torch.optim.SGD(model.parameters(), lr=0.1), *batch(0))
    except CaptureError as error:
        return str(error)
    return ""


def compared(me: Here) -> None:
    """The builder compares the graph with the step itself."""
    trained(compiled(accumulated, eager_check="on"), wrap(seeded()), 3)


def unreduced(me: Here) -> None:
    trained(compiled(left_on), wrap(seeded()), 3)


def outside(me: Here) -> None:
    trained(compiled(plain), Beside(), 3)


if __name__ == "__main__":
    globals()[sys.argv[1]](Here())
