"""Four ranks with 10, 9, 9 and 7 batches train; one process over each step's union is their twin.

Each rank notes of every step how many samples it had, and how far loss and gradients are from those
of the twin, relative to the largest.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from tests.ranks.launch import Here

IGNORED, WORDS, LENGTH = -100, 11, 5
SIZES = [[4] * 10, [4] * 9, [4] * 8 + [3], [4] * 7]  # by rank, of each of its batches

here = Here()
mesh = ls.mesh(dp=-1)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(tokens).cumsum(1)))


@ls.compile(mesh=mesh, data="dp", backend="graph", on_new_shape="error")
def train_step(model: Tagger, batch: dict[str, Tensor], weights: Tensor) -> Tensor:
    logits = model(batch["tokens"])
    losses = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    loss = ls.weighted_mean(losses, weights, "dp")
    loss.backward()
    ls.reduce_grads(model, dp="sum")
    return loss


def batches(rank: int) -> list[dict[str, Tensor]]:
    """What a rank's loader gives: labels that do not count are among them."""
    draw = torch.Generator().manual_seed(rank)
    made = []
    for size in SIZES[rank]:
        tokens = torch.randint(WORDS, (size, LENGTH), generator=draw)
        labels = torch.randint(3, (size, LENGTH), generator=draw)
        labels[torch.rand(size, LENGTH, generator=draw) < 0.2] = IGNORED
        made.append({"tokens": tokens, "labels": labels})
    return made


def twin(model: Tagger, step: int) -> tuple[Tensor, Tagger]:
    """One process over the union of what the ranks have at a step."""
    having = [batches(rank)[step] for rank in range(4) if step < len(SIZES[rank])]
    whole = {name: torch.cat([batch[name] for batch in having]) for name in having[0]}
    alone = copy.deepcopy(model)
    loss = F.cross_entropy(alone(whole["tokens"]).transpose(1, 2), whole["labels"])
    loss.backward()
    return loss.detach(), alone


def apart(mine: Tensor, its: Tensor) -> float:
    return ((mine - its).abs().max() / its.abs().max()).item()


def counts(batch: dict[str, Tensor]) -> Tensor:
    return batch["labels"] != IGNORED


def train(dtype: torch.dtype) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = Tagger().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = ls.even_batches(batches(here.rank), mesh, weights=counts)
    rows: list[dict[str, Any]] = []
    for _ in range(2):  # the second pass finds the size known
        for step, (batch, weights) in enumerate(loader):
            its, alone = twin(model, step)
            share = train_step(model, batch, weights)
            loss = ls.all_reduce(share.detach(), "dp", src=ls.P, dst=ls.R)
            pairs = zip(model.parameters(), alone.parameters(), strict=True)
            far = [apart(loss, its), *[apart(p.grad, q.grad) for p, q in pairs]]
            samples = int((weights.sum(1) > 0).sum())
            rows.append({"step": step, "samples": samples, "size": len(weights), "far": max(far)})
            optimizer.step()
            optimizer.zero_grad()
    return rows


def main() -> None:
    found = {str(dtype): train(dtype) for dtype in (torch.float32, torch.float64)}
    here.result(found)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
