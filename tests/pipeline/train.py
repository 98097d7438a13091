"""A small Llama trained in stages, and whole in plain PyTorch; each rank leaves both losses.

python -m tests.pipeline.train PP CHUNKS BACKEND [LAYERS] [MICRO_BATCHES] [fault] under torchrun
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from lockstep import parallel
from lockstep.models import llama, llama_stages
from tests.ranks.launch import Here

STEPS, BATCH, LENGTH, VOCAB, MOST, RATE = 3, 8, 12, 64, 0.5, 0.5
SIZES = {"dim": 16, "heads": 2, "kv_heads": 1, "ffn": 24, "vocab": VOCAB}


def texts() -> list[Tensor]:
    """The batches of the whole job."""
    draw = torch.Generator().manual_seed(7)
    return [torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=draw) for _ in range(STEPS)]


def whole(layers: int) -> llama.Llama:
    torch.manual_seed(0)
    return llama.Llama(llama.config("debug", layers=layers, **SIZES))


def alone(layers: int) -> list[list[float]]:
    """Train the whole model in this one process; gives losses and gradient norms."""
    model, told = whole(layers), []
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for text in texts():
        loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)
        optimizer.step()
        optimizer.zero_grad()
        told.append([loss.item(), norm.item()])
    return told


def fail(mesh: Any, backend: str) -> None:
    """A step whose first stage sends what the last one does not take."""

    @ls.compile(mesh=mesh, roles="pp", backend=backend)
    def lost(x: Tensor) -> Tensor:
        if mesh.get_local_rank("pp") == 0:
            ls.send(x, "pp", to=1)
        return ls.settle(x)

    lost(torch.zeros(2))


def main(pp: int, chunks: int, backend: str, layers: int = 4, micro: int = 4, *words: str) -> None:
    """Train three steps in stages, then once more whole."""
    here = Here()
    mesh = ls.mesh("cpu", pp=pp, dp=-1)
    stage = llama_stages.cut(whole(layers), mesh, chunks=chunks)
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)

    @ls.compile(mesh=mesh, data="dp", roles="pp", backend=backend)
    def train_step(stage, optimizer, tokens, labels):
        loss = parallel.pipeline_step(stage, tokens, labels, micro_batches=micro)
        parallel.reduce_grads(stage)
        norm = parallel.clip_grad_norm(stage, MOST)
        optimizer.step()
        optimizer.zero_grad()
        return loss, norm

    at, ranks = mesh.get_local_rank("dp"), mesh.get_group("dp").size()
    told = []
    for text in texts():
        own = text.chunk(ranks)[at]
        loss, norm = train_step(stage, optimizer, own[:, :-1], own[:, 1:])
        told.append([loss.item(), norm.item()])
    here.result({"told": told, "alone": alone(layers), "held": list(stage.state_dict())})
    if "fault" in words:
        fail(mesh, backend)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), sys.argv[3], *map(int, sys.argv[4:6]), *sys.argv[6:])  # type: ignore[arg-type]
