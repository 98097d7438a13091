"""Small models and steps, and the comparison of a compiled step with the eager one, bit by bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import lockstep as ls


class Tiny(nn.Module):
    """Embedding, linear, batch norm, dropout, and a head tied to the embedding."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = 1.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(self.embedding(tokens)).flatten(0, 1)
        return self.head(self.dropout(self.norm(hidden))) * self.scale


def train_step(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(tokens), labels.flatten())
    loss.backward()
    return loss


def batch(seed: int, rows: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 16, (rows, 4), generator=draw) for _ in range(2))  # type: ignore[return-value]


def tensors_of(model: nn.Module) -> dict[str, Any]:
    """All that a step may change: parameters, buffers, gradients, plain tensor attributes."""
    found: dict[str, Any] = dict(model.named_parameters()) | dict(model.named_buffers())
    found |= {f"{n}.grad": p.grad for n, p in model.named_parameters()}
    for path, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                found[f"{path}.{key}"] = value
    return found


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.detach(), b.detach())
    return type(a) is type(b) and a == b


def same_as_eager(
    step: Callable[..., Any],
    model: nn.Module,
    calls: list[tuple[Any, ...]],
    between: Callable[[nn.Module, int], None] = lambda model, i: None,
    backend: str = "graph",
) -> Any:
    """Run the calls eagerly and compiled, from equal starts, and hold every tensor equal.

    Returns:
        The compiled step, for what a test wants to look at next.
    """
    eager = copy.deepcopy(model)
    compiled = ls.compile(backend=backend)(step)
    results = []
    for function, subject in ((step, eager), (compiled, model)):
        torch.manual_seed(7)
        out = []
        for i, arguments in enumerate(calls):
            between(subject, i)
            out.append(pytree.tree_map(_copied, function(subject, *arguments)))
        results.append((out, tensors_of(subject), torch.rand(1)))
    (out_eager, state_eager, draw_eager), (out, state, draw) = results
    leaves, leaves_eager = pytree.tree_leaves(out), pytree.tree_leaves(out_eager)
    assert len(leaves) == len(leaves_eager)
    for i, (a, b) in enumerate(zip(leaves, leaves_eager, strict=True)):
        assert equal(a, b), f"result {i}: {a} is not {b}"
    assert state.keys() == state_eager.keys()
    for name in state:
        assert equal(state[name], state_eager[name]), name
    assert torch.equal(draw, draw_eager), "the random stream stands elsewhere"
    return compiled


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
