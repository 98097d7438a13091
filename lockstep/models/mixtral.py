"""A Llama whose feed-forwards are mixtures of experts, in plain PyTorch, as Mixtral's are.

Each token goes to the `top` experts that its router likes best, and to a shared one where there
is any. Names end in the shape of their tensor, as in `llama.py`, and
    N tokens of a batch   E experts   C chosen experts of a token   M rows: a token and one of them
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.models import llama


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """The hyper-parameters of a mixture; `ffn` is the inner width of one expert."""

    experts: int
    """E, experts of each block."""
    top: int = 2
    """C, to how many of them a token goes."""
    shared: int = 0
    """The inner width of an expert that every token goes to; 0 for none."""
    balance: float = 0.0
    """By how much `balance_experts` moves an expert's bias a step; 0 leaves the router free."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.top <= self.experts:
            raise UsageError(
                f"each token goes to {self.top} of {self.experts} experts",
                want=f"top from 1 to {self.experts}",
            )


CONFIGS = {
    # For two CPU cores and a vocabulary of bytes.
    "debug": Config(
        dim=64, layers=2, heads=4, kv_heads=2, ffn=96, vocab=256, init_std=0.05,
        experts=4, shared=64, balance=1e-3, rope_factor=1.0,
    ),
    # Mixtral 8x7B v0.1, as published.
    "8x7b": Config(
        dim=4096, layers=32, heads=32, kv_heads=8, ffn=14_336, vocab=32_000, experts=8,
        rope_theta=1e6, rope_factor=1.0,
    ),
}  # fmt: skip


def config(name: str, **changes: Any) -> Config:
    """Return the named config of `CONFIGS`, with some of its fields changed.

    Raises:
        UsageError: no config or field of this name, or numbers that do not fit.

    Example:
        >>> config("debug", experts=8).experts
        8
    """
    if name not in CONFIGS:
        raise UsageError(f"no Mixtral config {name!r}", want=f"one of {', '.join(CONFIGS)}")
    fields = [field.name for field in dataclasses.fields(Config)]
    if unknown := sorted(set(changes) - set(fields)):
        raise UsageError(f"a Mixtral config has no {', '.join(unknown)}", want=", ".join(fields))
    return dataclasses.replace(CONFIGS[name], **changes)


class Experts(nn.Module):
    """SwiGLU experts, each of its own rows: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        inward = config.experts, config.ffn, config.dim
        self.w1 = nn.Parameter(torch.empty(inward))
        self.w2 = nn.Parameter(torch.empty(config.experts, config.dim, config.ffn))
        self.w3 = nn.Parameter(torch.empty(inward))

    def forward(self, x_MD: Tensor, expert_M: Tensor) -> Tensor:
        """Return what each row's expert makes of it.

        Args:
            x_MD: rows in any order.
            expert_M: i64, which of the experts held here each goes to.
        """
        y_MD = torch.zeros_like(x_MD)
        for number, (w1, w2, w3) in enumerate(zip(self.w1, self.w2, self.w3, strict=True)):
            own = (expert_M == number).nonzero().squeeze(-1)
            x = x_MD.index_select(0, own)
            y_MD = y_MD.index_add(0, own, F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2))
        return y_MD


class Mixture(nn.Module):
    """A router and its experts.

    The router's choice is by score and bias, its weighting by score alone: the bias balances the
    load without an auxiliary loss, and no gradient goes to it.
    """

    bias: Tensor
    load: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top = config.top
        self.router = nn.Linear(config.dim, config.experts, bias=False)
        self.experts = Experts(config)
        shared = dataclasses.replace(config, ffn=config.shared)
        self.shared = llama.FeedForward(shared) if config.shared else None
        self.register_buffer("bias", torch.zeros(config.experts))
        self.register_buffer("load", torch.zeros(config.experts), persistent=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a new tensor like `x_BTD`; counts in `load` how many rows each expert got."""
        x_ND = x_BTD.flatten(0, 1)
        score_NE = self.router(x_ND).float().softmax(-1)
        expert_NC = (score_NE.detach() + self.bias).topk(self.top, dim=-1).indices
        share_NC = score_NE.gather(-1, expert_NC)
        share_NC = (share_NC / share_NC.sum(-1, keepdim=True)).type_as(x_ND)
        expert_M = expert_NC.flatten()
        with torch.no_grad():
            self.load += F.one_hot(expert_M, len(self.bias)).sum(0)
        x_MD = x_ND.repeat_interleave(self.top, dim=0)
        y_NCD = self.experts(x_MD, expert_M).unflatten(0, (-1, self.top))
        y_BTD = (y_NCD * share_NC[..., None]).sum(1).view_as(x_BTD)
        return y_BTD if self.shared is None else y_BTD + self.shared(x_BTD)


class Mixtral(llama.Llama):
    """A Llama whose feed-forwards are mixtures.

    Example:
        >>> Mixtral(config("debug"))(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 256])
    """

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for block in self.layers:
            block.feed_forward = Mixture(config)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw every weight anew, as a Llama's."""
        super().init_weights()
        narrow = self.config.init_std / (2 * self.config.layers) ** 0.5
        for name, weight in self.named_parameters():
            if name.endswith("experts.w2"):
                nn.init.trunc_normal_(weight, std=narrow, a=-3 * narrow, b=3 * narrow)
