"""A recommender's step on ranks whose samples have other numbers of items at every step.

Eager is its twin: each rank notes the worst difference of loss and gradients over all steps.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from tests.ranks.launch import Here

ITEMS, SAMPLES, MOST, STEPS = 40, 6, 256, 50

here = Here()
mesh = ls.mesh(dp=-1)


class Recommender(nn.Module):
    """Two bags over the same items, one summed by weights that are learned, and a tower."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(ITEMS, 8, mode="mean")
        self.sum = nn.EmbeddingBag(ITEMS, 8, mode="sum")
        self.taste = nn.Embedding(ITEMS, 1)
        self.tower = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, items: Tensor, offsets: Tensor) -> Tensor:
        tastes = self.taste(items).squeeze(1).sigmoid()
        both = self.mean(items, offsets), self.sum(items, offsets, per_sample_weights=tastes)
        return self.tower(torch.cat(both, 1)).squeeze(1)


def train_step(model: Recommender, items: Tensor, offsets: Tensor, clicked: Tensor) -> Tensor:
    scores = model(items, offsets)
    loss = ls.loss(F.binary_cross_entropy_with_logits(scores, clicked), dp="mean")
    loss.backward()
    ls.reduce_grads(model, dp="mean")
    return loss


def batch(draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of 0 to 30 items, at least two items in all."""
    lengths = torch.randint(31, (SAMPLES,), generator=draw)
    lengths[0] = lengths[0].clamp(min=2)
    items = torch.randint(ITEMS, (int(lengths.sum()),), generator=draw)
    clicked = torch.randint(2, (SAMPLES,), generator=draw).float()
    return items, lengths.cumsum(0) - lengths, clicked


def main(backend: str) -> None:
    torch.manual_seed(0)
    model = Recommender()
    twin = copy.deepcopy(model)
    dynamic = {"items": {0: (2, MOST)}}
    step = ls.compile(train_step, mesh=mesh, data="dp", backend=backend, dynamic=dynamic)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.3) for m in (model, twin)]
    draw = torch.Generator().manual_seed(here.rank)
    sizes: list[int] = []
    worst = 0.0
    for _ in range(STEPS):
        given = batch(draw)
        pairs = [(step(model, *given).detach(), train_step(twin, *given).detach())]
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None
            pairs.append((p.grad, q.grad))
        worst = max(worst, *[(mine - its).abs().max().item() for mine, its in pairs])
        sizes.append(len(given[0]))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        twin.load_state_dict(model.state_dict())
    found: dict[str, Any] = {"sizes": sizes, "worst": worst}
    here.result(found)


if __name__ == "__main__":
    main(sys.argv[1])
    dist.destroy_process_group()
