"""A small Llama trained in stages, and whole in plain PyTorch; each rank leaves how they compare.

python -m tests.pipeline.train CASE ... under torchrun, each CASE as one argument:
"AXES CHUNKS BACKEND LAYERS MICRO_BATCHES [WORD ...]"

AXES: as pp=2,dp=1,tp=2. Words: fields of a plan that are on (sequence, regather, recompute), bf16,
tied; alone, where tied ends do not add up; fault, which ends with a message that nobody takes.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep as ls
from lockstep import parallel
from lockstep.models import llama, llama_plan, llama_stages
from lockstep.spmd.mesh import apart
from tests.ranks.launch import Here

STEPS, BATCH, LENGTH, VOCAB, MOST, RATE = 3, 8, 12, 64, 0.5, 0.5
SIZES = {"dim": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocab": VOCAB}
Grads = dict[str, Tensor]


def texts() -> list[Tensor]:
    """The batches of the whole job."""
    draw = torch.Generator().manual_seed(7)
    return [torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=draw) for _ in range(STEPS)]


def whole(layers: int, tied: bool) -> llama.Llama:
    torch.manual_seed(0)
    return llama.Llama(llama.config("debug", layers=layers, tied=tied, **SIZES))


def alone(model: llama.Llama) -> tuple[list[list[float]], list[Grads]]:
    """Train the whole model in this one process; gives losses with norms, and gradients."""
    told, grads = [], []
    named = dict(model.named_parameters(remove_duplicate=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for text in texts():
        loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)
        grads.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
        told.append([loss.item(), norm.item()])
    return told, grads


def furthest(stage: parallel.Stage, want: Grads) -> float:
    """The largest relative difference of this rank's gradients from the whole ones."""
    named, far = dict(stage.named_parameters()), 0.0
    for name, placed in parallel.placements(stage).items():
        grad, part = named[name].grad, want[name]
        for dim, (start, size) in enumerate(zip(placed.offsets, placed.sizes, strict=True)):
            part = part.narrow(dim, start, size)
        assert grad is not None
        if part.numel():
            gap = (placed.held(grad) - part).abs().max() / want[name].abs().max()
            far = max(far, gap.item())
    return far


def digest(parameter: Tensor) -> str:
    return hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()


def fail(mesh: Any, backend: str) -> None:
    """A step whose first stage sends what the last one does not take."""

    @ls.compile(mesh=mesh, roles="pp", backend=backend)
    def lost(x: Tensor) -> Tensor:
        if mesh.get_local_rank("pp") == 0:
            ls.send(x, "pp", to=1)
        return ls.settle(x)

    lost(torch.zeros(2))


def compared(mesh: Any, chunks: int, backend: str, layers: int, micro: int, *words: str) -> Any:
    """Train three steps in stages, beside the same whole."""
    told_alone, grads_alone = alone(whole(layers, "tied" in words))
    switches = {word: True for word in ("sequence", "regather", "recompute") if word in words}
    plan = llama_plan.Plan(dtype=torch.bfloat16 if "bf16" in words else None, **switches)
    stage = llama_stages.cut(whole(layers, "tied" in words), mesh, plan, chunks=chunks)
    if "alone" in words:
        stage.shared = list  # type: ignore[method-assign,assignment]
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)
    data = parallel.layout(stage).data

    @ls.compile(mesh=mesh, data=data, roles="pp", backend=backend)
    def train_step(stage, optimizer, tokens, labels):
        loss = parallel.pipeline_step(stage, tokens, labels, micro_batches=micro)
        parallel.reduce_grads(stage)
        norm = parallel.clip_grad_norm(stage, MOST)
        optimizer.step()
        return loss, norm

    told, far = [], []
    for text, want in zip(texts(), grads_alone, strict=True):
        own = text
        for axis in data:
            own = own.chunk(mesh[axis].size())[mesh.get_local_rank(axis)]
        loss, norm = train_step(stage, optimizer, own[:, :-1], own[:, 1:])
        told.append([loss.item(), norm.item()])
        far.append(furthest(stage, want))
        optimizer.zero_grad()
    return {
        "told": told,
        "alone": told_alone,
        "grads": far,
        "shared": [digest(parameter) for parameter in stage.shared()],
        "held": list(stage.state_dict()),
    }


def main(*cases: str) -> None:
    """Leave a result a case."""
    here, results = Here(), list[Any]()
    for case in cases:
        axes, chunks, backend, layers, micro, *words = case.split()
        sizes = dict(word.split("=") for word in axes.split(","))
        with apart():  # of two names for the same ranks, a group would give the first
            mesh = ls.mesh("cpu", **{axis: int(size) for axis, size in sizes.items()})
            one = compared(mesh, int(chunks), backend, int(layers), int(micro), *words)
            here.result(results := [*results, one])
            if "fault" in words:
                fail(mesh, backend)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
