"""Every layout trained for 20 steps: on this rank by a step of some kind, and by one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lockstep.models import mixtral
from lockstep.parallel.expert import balanced
from tests.bitwise.compare import History, Record
from tests.parallel.layouts import MOST, Case

ROWS, TOKENS, RATE = 4, 16, 1e-3


@dataclass(frozen=True)
class Training:
    """One training from the start.

    Args:
        case: the layout.
        steps: how many.
        changes: of the debug config.
    """

    case: Case
    steps: int = 20
    changes: dict[str, Any] = field(default_factory=dict)

    def whole(self, dtype: torch.dtype) -> Any:
        """The model before it is laid out."""
        return self.case.whole(**self.changes).to(dtype)


def batches(vocab: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The job's batches: a stream with some structure, labels left out here and there."""
    drawn = torch.Generator().manual_seed(11)
    text = torch.randint(4, (steps, ROWS, TOKENS + 1), generator=drawn).cumsum(-1) * 3 % vocab
    for rows in text:
        labels = rows[:, 1:].clone()
        labels[0, :3] = -100
        yield rows[:, :-1].clone(), labels


def train(run: Training, mesh: Any, step: Callable[..., Any], dtype: torch.dtype) -> History:
    """Train the debug model under a layout; records loss, norm, and this rank's parameters."""
    model = run.case.laid_out(mesh, run.whole(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    history: History = []
    for whole in batches(model.config.vocab, run.steps):
        loss, norm = step(model, *run.case.own(mesh, *whole))
        optimizer.step()
        optimizer.zero_grad()
        history.append({"loss": loss.clone(), "norm": norm.clone(), **_parameters(model)})
    return history


def train_alone(run: Training, dtype: torch.dtype) -> History:
    """Train the same model in one process on whole batches, in plain PyTorch."""
    model = run.whole(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    history: History = []
    for tokens, labels in batches(model.config.vocab, run.steps):
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MOST)
        for block in model.layers if isinstance(model, mixtral.Mixtral) else ():
            mixture = block.feed_forward
            mixture.bias.copy_(balanced(mixture.bias, mixture.load, model.config.balance))
            mixture.load.zero_()
        optimizer.step()
        optimizer.zero_grad()
        history.append({"loss": loss.detach(), "norm": norm})
    return history


@contextlib.contextmanager
def left_wide() -> Iterator[None]:
    """Let `x.float()` leave an f64 as it is, so that f64 is f64 all through a model."""
    original = torch.Tensor.float

    def wide(x: Tensor, *args: Any, **words: Any) -> Tensor:
        return x if x.dtype == torch.float64 else original(x, *args, **words)

    torch.Tensor.float = wide  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.float = original  # type: ignore[method-assign]


def apart(one: History, other: History) -> float:
    """How far two runs' last losses are apart, relative to the second."""
    a, b = one[-1]["loss"].item(), other[-1]["loss"].item()
    return abs(a - b) / abs(b)


def _parameters(model: Any) -> Record:
    return {f"param {name}": p.detach().clone() for name, p in model.named_parameters()}
