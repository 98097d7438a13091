"""A language model whose vocabulary lies in parts on the ranks of one axis: embedding and loss.

Each rank holds `size` rows; its first one is `rank * size`, read inside the step or before it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep import P, R

VOCAB, WIDTH = 16, 8


class Vocab(nn.Module):
    """A table of this rank's rows, a hidden layer that all ranks hold, and logits by the table."""

    def __init__(self, mesh: Any, axis: str = "tp") -> None:
        super().__init__()
        self.mesh, self.axis = mesh, axis
        self.size = VOCAB // mesh[axis].size()
        parts = torch.randn(VOCAB, WIDTH).split(self.size)
        self.table = nn.Parameter(parts[mesh.get_local_rank(axis)].clone())
        self.hidden = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = ls.all_reduce(self._rows(tokens), self.axis, src=P, dst=R)
        logits = F.gelu(self.hidden(x)).flatten(0, 1) @ self.table.T
        return self._loss(logits, labels.flatten())

    def _own(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Indices into this rank's rows, and which of them are none of its own."""
        first = self.first()
        outside = (ids < first) | (ids >= first + self.size)
        return (ids - first).masked_fill(outside, 0), outside

    def first(self) -> int:
        """This rank's first row."""
        rank: int = self.mesh.get_local_rank(self.axis)
        return rank * self.size

    def _rows(self, tokens: Tensor) -> Tensor:
        local, outside = self._own(tokens)
        return F.embedding(local, self.table).masked_fill(outside[..., None], 0.0)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        largest = logits.detach().amax(1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.mesh.get_group(self.axis))
        shifted = logits - largest[:, None]
        total = ls.all_reduce(shifted.exp().sum(1), self.axis, src=P, dst=R)
        local, outside = self._own(labels)
        picked = shifted.gather(1, local[:, None])[:, 0].masked_fill(outside, 0.0)
        right = ls.all_reduce(picked, self.axis, src=P, dst=R)
        return (total.log() - right).mean()


class EarlyVocab(Vocab):
    """The same, whose first row was computed by its constructor, as Megatron's layers have it."""

    def __init__(self, mesh: Any, axis: str = "tp") -> None:
        super().__init__(mesh, axis)
        self.vocab_start_index = mesh.get_local_rank(axis) * self.size

    def first(self) -> int:
        return self.vocab_start_index


def vocabulary(model: Vocab, tokens: Tensor, labels: Tensor) -> Tensor:
    loss = model(tokens, labels)
    loss.backward()
    return loss


def train(function: Any, model: Vocab, steps: int = 3) -> list[Tensor]:
    """Train with a step; returns losses, gradients and the parameters at the end."""
    found = []
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens, labels = (torch.randint(0, VOCAB, (2, 4), generator=draw) for _ in range(2))
        found.append(function(model, tokens, labels).detach().clone())
        for parameter in model.parameters():
            assert parameter.grad is not None
            found.append(parameter.grad.clone())
            with torch.no_grad():
                parameter -= 0.1 * parameter.grad
            parameter.grad = None
    return found + [p.detach().clone() for p in model.parameters()]
