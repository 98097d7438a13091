"""torch's wrappers: DDP with either reducer, FSDP2, and DTensor's tensor-parallel styles."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import lockstep as ls
from clients.program import Program, draws
from lockstep import parallel

VOCAB, WIDE, BATCH, TOKENS = 32, 16, 2, 8


class Block(nn.Module):
    """Norm, two layers, beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, 4 * WIDE), nn.Linear(4 * WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """A small language model without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDE, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tokens(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Tokens and labels."""
    ids = torch.randint(VOCAB, (2, BATCH, TOKENS), generator=draws(mesh, call))
    return tuple(ids.unbind(0))


def step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """A step whose wrapper reduces gradients by itself."""
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    loss.backward()
    return loss


def mean_step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """A step that says how its loss adds up, as DDP and FSDP2 average: the mean over dp."""
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    loss = ls.loss(loss, dp="mean")
    loss.backward()
    return loss


def share_step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    """A step whose loss is a rank's share of a sum, as `parallel.fully_shard` wants it."""
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    loss = ls.loss(loss / dist.get_world_size(), fsdp="sum")
    loss.backward()
    return loss


def ddp(mesh: Any) -> nn.Module:
    """Wrapped by DDP, whose reducer is C++."""
    model = nn.parallel.DistributedDataParallel(Net())
    ls.type_parameters(model, {"module.blocks.*.norm.*": {"dp": ls.I}})  # ones, as a shard might be
    return model


def ddp_python(mesh: Any) -> nn.Module:
    """Wrapped by DDP, whose reducer is hooks in Python."""
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = "python_reducer"
    return ddp(mesh)


def sharded(mesh: Any) -> nn.Module:
    """Wrapped by FSDP2."""
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def sharded_by_lockstep(mesh: Any) -> nn.Module:
    """Not wrapped: what a refused option of FSDP2 says to write."""
    model = Net()
    parallel.place(model, {"*": {}})
    parallel.fully_shard(model, "fsdp")
    return model


def divided(sequence: bool) -> Any:
    """What makes a net by DTensor's styles, with or without sequence parallelism."""
    rows = Shard(1) if sequence else Replicate()

    def make(mesh: Any) -> nn.Module:
        model = Net()
        outer = {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
            "head": ColwiseParallel(input_layouts=rows, output_layouts=Replicate()),
        }
        inner: dict[str, Any] = {
            "up": ColwiseParallel(input_layouts=rows),
            "down": RowwiseParallel(output_layouts=rows),
        }
        parallelize_module(model, mesh, outer)
        for block in model.blocks:
            styles = {**inner, **({"norm": SequenceParallel()} if sequence else {})}
            parallelize_module(block, mesh, styles)
        if not sequence:  # plain parameters, of which nothing else says that they are copies
            ls.type_parameters(model, {"blocks.*.norm.*": {"tp": ls.I}})
        return model

    return make


def wrapped(name: str, model: Any, **more: Any) -> Program:
    """A program of torch's wrappers; each was seen to be captured bitwise."""
    return Program(name, "torch", model, tokens, step, **more)


TP: dict[str, Any] = dict(mesh={"tp": 2}, data=(), noted=True)
PROGRAMS = [
    Program("DDP", "torch", ddp, tokens, mean_step),
    Program("DDP, python reducer", "torch", ddp_python, tokens, mean_step, noted=True),
    Program("FSDP2", "torch", sharded, tokens, mean_step, noted=True),
    Program(
        "plain model, lockstep.parallel.fully_shard",
        "torch",
        sharded_by_lockstep,
        tokens,
        share_step,
        mesh={"fsdp": 2},
        data=("fsdp",),
    ),
    wrapped("DTensor styles", divided(False), **TP),
    wrapped("DTensor styles, with sequence parallelism", divided(True), **TP),
]
