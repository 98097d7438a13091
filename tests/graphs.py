"""Tiny captured graphs for tests of the back ends, traced the way a step is captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Traced:
    """What a back end reads of a captured step."""

    gm: Any
    fakes: list[Any]
    fake_mode: Any


def trace(step: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Traced:
    """Trace `step(*inputs)`, a function to a tuple of tensors, under fake tensors."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(allow_non_fake_inputs=False, shape_env=ShapeEnv())
    fakes = [mode.from_tensor(value, static_shapes=True) for value in inputs]
    one_thread = torch.autograd.set_multithreading_enabled(False)
    with mode, tracing(TracingContext(mode)), one_thread, torch.no_grad():
        gm = make_fx(lambda *values: tuple(step(*values)))(*fakes)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return Traced(gm, fakes, mode)


class Block(nn.Module):
    """One transformer layer: attention by SDPA, dropout, and a gated MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.norm, self.drop = nn.LayerNorm(dim), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, seq, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, seq, dim)))
        return x + self.down(F.silu(self.up(x)))


class Tiny(nn.Module):
    """A language model of one or two `Block`s over 32 tokens."""

    def __init__(self, layers: int = 1, dim: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, dim)
        self.blocks = nn.Sequential(*(Block(dim, 2) for _ in range(layers)))
        self.head = nn.Linear(dim, 32, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def training_step(model: nn.Module, reduce: Callable[[Any], Any] = lambda grad: grad) -> Any:
    """Return `step(*params, tokens, labels) -> (loss, *grads)` of a model, forward and backward."""
    names = [name for name, _ in model.named_parameters()]

    def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *params, tokens, labels = inputs
        with torch.enable_grad():
            leaves = {n: p.detach().requires_grad_() for n, p in zip(names, params, strict=True)}
            logits = torch.func.functional_call(model, leaves, (tokens,))
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
            grads = torch.autograd.grad(loss, list(leaves.values()))
        return (loss.detach(), *(reduce(grad) for grad in grads))

    return step


def training_inputs(model: nn.Module, seed: int = 0) -> list[torch.Tensor]:
    """Return parameters, tokens and labels for `training_step`."""
    torch.manual_seed(seed)
    tokens = torch.randint(0, 32, (2, 9))
    params = [param.detach().clone() for param in model.parameters()]
    return [*params, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()]
