"""Steps of models in FSDP2, trained as they are and compiled; each function is a script.

torchrun ... -m tests.ranks.fsdp2 NAME
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import checkpoint

import lockstep as ls
from lockstep.capture.capture import capture
from lockstep.capture.wrapped import shards
from lockstep.errors import LockstepError
from tests.ranks.launch import Here

mesh, hybrid = ls.mesh("cpu", dp=-1), ls.mesh("cpu", copies=2, parts=2)
WIDE = 8
Step = Callable[..., Any]
Make = Callable[[], Any]


class Block(nn.Module):
    """A layer beside a residual; `way` is how it is run."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.up, self.down, self.way = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE), way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "checkpoint inside":
            hidden = checkpoint(self.up, x, use_reentrant=False).relu()
            return x + self.down(hidden)
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    """Two blocks, a layer that may be left out, and a head that is tied to the first layer."""

    def __init__(self, way: str = "") -> None:
        super().__init__()
        self.first, self.spare, self.head = (nn.Linear(WIDE, WIDE) for _ in range(3))
        self.blocks = nn.ModuleList(Block(way) for _ in range(2))
        self.norm, self.way = nn.LayerNorm(WIDE), way
        self.claims: dict[str, str] = {}
        if way == "tied":
            self.head.weight = self.first.weight
        if way == "frozen":
            self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in [*self.blocks, *self.blocks] if self.way == "twice" else self.blocks:
            if self.way.startswith("checkpoint around"):
                x = checkpoint(block, x, use_reentrant=self.way.endswith("reentrant"))
            else:
                x = block(x)
        return self.head(self.norm(x if self.way != "spare" else self.spare(x)))


def sharded(way: str = "", over: Any = mesh, **options: Any) -> Any:
    torch.manual_seed(0)
    model = Net(way)
    model.claims = dict.fromkeys(over.mesh_dim_names, "mean")
    if way == "listed":
        fully_shard([model.norm, model.head], mesh=over, **options)
    for block in model.blocks:
        fully_shard(block, mesh=over, **options)
    return fully_shard(model, mesh=over, **options)


def copies() -> Any:
    """HSDP: the shards of two ranks, and a copy of them on two others."""
    return sharded(over=hybrid)


def told(**settings: Any) -> Any:
    model = sharded()
    for name, value in settings.items():
        getattr(model, name)(value)
    for block in model.blocks:
        for name, value in settings.items():
            getattr(block, name)(value)
    return model


def batch(number: int, count: int = 2) -> list[Tensor]:
    draw = torch.Generator().manual_seed(10 * number + dist.get_rank())
    return list(torch.randn(count, 3, WIDE, generator=draw).unbind(0))


def trained(step: Step, model: Any, calls: int = 3) -> list[list[Tensor]]:
    """After each call what it gives, all gradients and parameters, this rank's part of each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return [[*_seen(step(model, optimizer, *batch(n)), model)] for n in range(calls)]


def _seen(given: Any, model: Any) -> Iterator[Tensor]:
    model.reshard()  # an evaluation leaves the root whole
    given = given if isinstance(given, tuple) else (given,)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    for tensor in (*given, *grads, *model.parameters()):
        yield (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


def differing(one: list[list[Tensor]], other: list[list[Tensor]]) -> list[int]:
    """The calls after which any tensor has other bits."""
    return [
        i
        for i, (a, b) in enumerate(zip(one, other, strict=True))
        if len(a) != len(b) or not all(map(torch.equal, a, b))
    ]


# ---- steps ---------------------------------------------------------------------------------------


def loss_of(model: Any, x: Tensor) -> Tensor:
    return ls.loss(model(x).float().square().mean(), **model.claims)


def plain(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, _: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    return loss


def kept(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, _: Tensor) -> Tensor:
    """Gradients stay tensors from call to call."""
    optimizer.zero_grad(set_to_none=False)
    loss = loss_of(model, x)
    loss.backward()
    optimizer.step()
    return loss


def accumulated(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Any:
    """Three parts of a batch, reduced with the last, and clipped."""
    optimizer.zero_grad()
    model.set_requires_gradient_sync(False)
    for part in (x, y):
        (loss_of(model, part) / 3).backward()
    model.set_requires_gradient_sync(True)
    loss = loss_of(model, x + y) / 3
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss, norm.full_tensor()


def together(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Two forwards before one backward, then an evaluation."""
    optimizer.zero_grad()
    loss = loss_of(model, x) + loss_of(model, y)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        return model(x).sum() + loss


def apart(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Two forwards, then a backward of each; both reduce."""
    optimizer.zero_grad()
    losses = loss_of(model, x), loss_of(model, y)
    for loss in losses:
        loss.backward()
    optimizer.step()
    return losses[0]


def by_hand(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Gathered before it is asked for, and a gradient of the whole parameters of the root."""
    handle = model.unshard(async_op=True)
    handle.wait()
    penalty = sum(p.square().sum() for p in (model.first.weight, model.head.weight))
    optimizer.zero_grad()
    loss = loss_of(model, x) + 0.1 * penalty
    loss.backward()
    optimizer.step()
    return loss


def left_on(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """Nothing is ever reduced."""
    model.set_requires_gradient_sync(False)
    return plain(model, optimizer, x, y)


def whole(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    """The next forward would compute with old parameters."""
    model.set_reshard_after_backward(False)
    return plain(model, optimizer, x, y)


BF16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
FP16 = MixedPrecisionPolicy(torch.float16, torch.float16)
CASES: dict[str, tuple[Step, Make]] = {
    "plain": (plain, sharded),
    "kept": (kept, sharded),
    "accumulated": (accumulated, sharded),
    "accumulated, not cut": (accumulated, lambda: sharded(reshard_after_forward=False)),
    "accumulated, bf16": (accumulated, lambda: sharded(mp_policy=BF16)),
    "fp16": (plain, lambda: sharded(mp_policy=FP16)),
    "together": (together, sharded),
    "apart": (apart, sharded),
    "by hand": (by_hand, sharded),
    "twice": (accumulated, lambda: sharded("twice")),
    "tied": (accumulated, lambda: sharded("tied")),
    "listed": (accumulated, lambda: sharded("listed")),
    "frozen": (plain, lambda: sharded("frozen")),
    "spare": (plain, lambda: sharded("spare")),
    "checkpoint inside": (accumulated, lambda: sharded("checkpoint inside")),
    "checkpoint around": (accumulated, lambda: sharded("checkpoint around")),
    "checkpoint around, reentrant": (plain, lambda: sharded("checkpoint around, reentrant")),
    "sums": (plain, lambda: told(set_force_sum_reduction_for_comms=True)),
    "a factor": (
        plain,
        lambda: told(set_gradient_divide_factor=2.0, set_force_sum_reduction_for_comms=True),
    ),
    "unused": (plain, lambda: told(set_reduce_scatter_unused_params=True)),
    "copies": (accumulated, copies),
}


# ---- scripts -------------------------------------------------------------------------------------


def compiled(step: Step, model: Any, **options: Any) -> Step:
    over = {name: held for held in (mesh, hybrid) for name in held.mesh_dim_names}
    data = tuple(model.claims)
    made = ls.compile(mesh=over[data[0]], data=data, backend="graph", **options)
    found: Step = made(step)
    return found


def bitwise(me: Here) -> None:
    """Of each case the calls with other bits than the wrapper's own; and what is refused."""
    cases = {name: _differing(*CASES[name]) for name in sys.argv[2:] or CASES}
    me.result({"cases": cases, "summed": _summed(me.folder), "refused": _refused()})


def _differing(step: Step, make: Make, **options: Any) -> list[int]:
    model = make()
    return differing(trained(step, make()), trained(compiled(step, model, **options), model))


def _summed(folder: Path) -> list[int]:
    """The mean is left out; in a store of its own, as an audit would find it in the other."""
    named = shards.fsdp.op_named
    shards.fsdp.op_named = lambda op: "sum"
    found = _differing(plain, sharded, store=folder / "summed")
    shards.fsdp.op_named = named
    return found


def _refused() -> dict[str, str]:
    held = sharded()
    held.set_requires_gradient_sync(False)
    loss_of(held, batch(0)[0]).backward()
    hooked = sharded()
    hooked.set_all_reduce_hook(lambda grad: None)
    cases = {
        "left on": (left_on, sharded()),
        "whole": (whole, sharded()),
        "held": (plain, held),
        "offloaded": (plain, sharded(offload_policy=CPUOffloadPolicy(pin_memory=False))),
        "columns": (plain, sharded(shard_placement_fn=lambda p: Shard(p.dim() - 1))),
        "hooked": (plain, hooked),
        "a factor": (plain, told(set_gradient_divide_factor=2.0)),
    }
    return {name: _text(*case) for name, case in cases.items()}


def _text(step: Step, model: Any) -> str:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        capture(step, model, optimizer, *batch(0))
    except LockstepError as error:
        return str(error)
    return ""


def compared(me: Here) -> None:
    """The builder compares the graph with the step itself."""
    model = sharded()
    trained(compiled(accumulated, model, eager_check="on"), model)


if __name__ == "__main__":
    globals()[sys.argv[1]](Here())
