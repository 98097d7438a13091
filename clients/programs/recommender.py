"""A recommender of torch's EmbeddingBag, whose samples have other numbers of items each time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clients.program import Program, copies, draws, replicated

ITEMS, SAMPLES, MOST = 50, 8, 8 * 12


class Recommender(nn.Module):
    """Bags of items, a tower, and a score."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, 16, mode="mean")
        self.tower = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, items: Tensor, offsets: Tensor) -> Tensor:
        return self.tower(self.items(items, offsets)).squeeze(1)


def jagged(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """Items, where each sample's begin, and whether it was clicked."""
    draw = draws(mesh, call)
    lengths = torch.randint(1, 12, (SAMPLES,), generator=draw)
    items = torch.randint(ITEMS, (int(lengths.sum()),), generator=draw)
    return items, lengths.cumsum(0) - lengths, torch.randint(2, (SAMPLES,), generator=draw).float()


@replicated
def step(model: nn.Module, items: Tensor, offsets: Tensor, clicked: Tensor) -> Tensor:
    """Whether a sample is clicked."""
    return nn.functional.binary_cross_entropy_with_logits(model(items, offsets), clicked)


def pooled(lengths: Tensor) -> Tensor:
    """To which sample each item belongs."""
    return torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)


def keyed(mesh: Any, call: int) -> tuple[Tensor, ...]:
    """The same with lengths in place of offsets, as recommenders' libraries keep them."""
    items, offsets, clicked = jagged(mesh, call)
    ends = torch.cat([offsets[1:], torch.tensor([len(items)])])
    return items, ends - offsets, clicked


class Pooled(Recommender):
    """Items are added up by the sample that they belong to."""

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.nn.functional.embedding(items, self.items.weight)
        sums = rows.new_zeros(SAMPLES, rows.shape[1]).index_add(0, pooled(lengths), rows)
        return self.tower(sums / lengths[:, None]).squeeze(1)


SIZES = {"items": {0: (2, MOST)}}
PROGRAMS = [
    Program("jagged recommender, offsets", "torch", copies(Recommender), jagged, step,
            dynamic=SIZES),
    Program("jagged recommender, lengths", "torch", copies(Pooled), keyed, step,
            dynamic=SIZES),
]  # fmt: skip
