"""Llama 3 in plain PyTorch, from the embedding to the loss.

Names end in the shape of their tensor, one letter a dimension:
    B batch   T tokens   D model width   H query heads   G key-value heads
    K head width   J head width / 2   F feed-forward width   V vocabulary
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lockstep.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The hyper-parameters of one Llama; those of the published sizes are in `CONFIGS`."""

    dim: int
    """D, the width of the residual stream; a multiple of 2 * `heads`."""
    layers: int
    """How many transformer blocks."""
    heads: int
    """H, query heads; a multiple of `kv_heads`."""
    kv_heads: int
    """G, key and value heads; each serves H / G query heads."""
    ffn: int
    """F, the inner width of the feed-forward."""
    vocab: int = 128_256
    """V, how many different tokens."""
    tied: bool = False
    """Whether the output projection is the embedding's own weight."""
    dropout: float = 0.0
    """The probability to drop a value of a block's two outputs while training."""
    norm_eps: float = 1e-5
    """Added to the mean square before its root."""
    init_std: float = 0.02
    """Standard deviation of the initial weights; see `Llama.init_weights`."""
    rope_theta: float = 500_000.0
    """The base of the rotary frequencies."""
    rope_factor: float = 8.0
    """By how much the slow rotations are slowed, to reach past `rope_context`; 1 leaves all."""
    rope_low: float = 1.0
    """Pairs with fewer turns than this within `rope_context` are slowed by the whole factor."""
    rope_high: float = 4.0
    """Pairs with more turns than this within `rope_context` are left as they are."""
    rope_context: int = 8192
    """Tokens of the context that the frequencies were first trained on."""

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads) or self.heads % self.kv_heads:
            got = f"dim {self.dim}, heads {self.heads}, kv_heads {self.kv_heads}"
            want = "dim a multiple of 2 * heads, heads a multiple of kv_heads"
            raise UsageError("a Llama whose heads do not divide", got=got, want=want)

    @property
    def head_dim(self) -> int:
        """K, the width of one head."""
        return self.dim // self.heads


CONFIGS = {
    # For two CPU cores and a vocabulary of bytes; its narrow layers want a wider start.
    "debug": Config(dim=128, layers=4, heads=4, kv_heads=2, ffn=384, vocab=256, init_std=0.05),
    # Llama 3.2 1B, Llama 3.1 8B and 70B, as published.
    "1b": Config(dim=2048, layers=16, heads=32, kv_heads=8, ffn=8192, tied=True, rope_factor=32.0),
    "8b": Config(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14_336),
    "70b": Config(dim=8192, layers=80, heads=64, kv_heads=8, ffn=28_672),
}


def config(name: str, **changes: Any) -> Config:
    """Return the named config of `CONFIGS`, with some of its fields changed.

    Raises:
        UsageError: no config or field of this name, or heads that do not divide.

    Example:
        >>> config("8b", layers=2).layers
        2
    """
    if name not in CONFIGS:
        raise UsageError(f"no Llama config {name!r}", want=f"one of {', '.join(CONFIGS)}")
    fields = [field.name for field in dataclasses.fields(Config)]
    if unknown := sorted(set(changes) - set(fields)):
        raise UsageError(f"a Llama config has no {', '.join(unknown)}", want=", ".join(fields))
    return dataclasses.replace(CONFIGS[name], **changes)


def rope_frequencies(config: Config, device: torch.device | None = None) -> Tensor:
    """Return how many radians each pair of a head's values turns from one token to the next.

    Fast pairs keep their frequency, slow ones are divided by `rope_factor`, and those between are
    blended by how many turns they make within `rope_context`.

    The result is f32[J], the caller's.
    """
    pairs_J = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
    fast_J = config.rope_theta ** (-pairs_J / config.head_dim)
    turns_J = config.rope_context * fast_J / (2 * math.pi)
    keep_J = ((turns_J - config.rope_low) / (config.rope_high - config.rope_low)).clamp(0, 1)
    return keep_J * fast_J + (1 - keep_J) * fast_J / config.rope_factor


def rotate(x_BTHK: Tensor, cos_TJ: Tensor, sin_TJ: Tensor) -> Tensor:
    """Turn each pair of neighbouring values of each head by its token's angle.

    Neighbours form a pair, as in Meta's checkpoints (Hugging Face's pair the two halves).

    Args:
        x_BTHK: queries or keys of any number of heads; the result is a new tensor like it.
        cos_TJ, sin_TJ: cosines and sines of the angles, f32.
    """
    a_BTHJ, b_BTHJ = x_BTHK.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos_T1J, sin_T1J = cos_TJ[:, None], sin_TJ[:, None]
    turned = (a_BTHJ * cos_T1J - b_BTHJ * sin_T1J, a_BTHJ * sin_T1J + b_BTHJ * cos_T1J)
    return torch.stack(turned, dim=-1).flatten(-2).type_as(x_BTHK)


class RMSNorm(nn.Module):
    """Scale each vector to a root mean square of one, then by a learned weight f32[D]."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a new tensor like `x_BTD`; the mean is taken in f32 whatever its dtype."""
        wide_BTD = x_BTD.float()
        scale_BT1 = torch.rsqrt(wide_BTD.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide_BTD * scale_BT1).type_as(x_BTD) * self.weight


class Attention(nn.Module):
    """Causal attention in which each key-value head serves a group of query heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x_BTD: Tensor, cos_TJ: Tensor, sin_TJ: Tensor) -> Tensor:
        """Return what each token reads from itself and those before it, like `x_BTD`."""
        heads = (-1, self.head_dim)
        q_BTHK = rotate(self.wq(x_BTD).unflatten(-1, heads), cos_TJ, sin_TJ)
        k_BTGK = rotate(self.wk(x_BTD).unflatten(-1, heads), cos_TJ, sin_TJ)
        v_BTGK = self.wv(x_BTD).unflatten(-1, heads)
        read_BHTK = F.scaled_dot_product_attention(
            q_BTHK.transpose(1, 2),
            k_BTGK.transpose(1, 2),
            v_BTGK.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        return self.wo(read_BHTK.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return a new tensor like `x_BTD`."""
        gated_BTF = F.silu(self.w1(x_BTD)) * self.w3(x_BTD)
        return self.w2(gated_BTF)


class Block(nn.Module):
    """Attention, then feed-forward, each on a normed copy and added to the stream."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, cos_TJ: Tensor, sin_TJ: Tensor) -> Tensor:
        """Return the stream after this block, like `x_BTD`."""
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), cos_TJ, sin_TJ))
        return x_BTD + self.dropout(self.feed_forward(self.ffn_norm(x_BTD)))


class Llama(nn.Module):
    """A Llama 3; its weights are named as in Meta's checkpoints.

    Args:
        config: the hyper-parameters, by `config("debug")` and kin. The weights are made on torch's
            default device and drawn from its default generator; on the meta device nothing is
            drawn, and `init_weights` gives them values once they are real.

    Example:
        >>> Llama(config("debug"))(torch.zeros(2, 8, dtype=torch.int64)).shape
        torch.Size([2, 8, 256])
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)
        if config.tied:
            self.output.weight = self.tok_embeddings.weight
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Draw every weight anew from torch's default generator.

        Normal with `init_std`, cut at three deviations; the projections that write to the stream
        (`wo`, `w2`) by sqrt(2 * layers) narrower, so that the stream's size does not grow with the
        depth; norms one.
        """
        narrow = self.config.init_std / math.sqrt(2 * self.config.layers)
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.fill_(1)
                continue
            std = narrow if name.endswith(("wo.weight", "w2.weight")) else self.config.init_std
            nn.init.trunc_normal_(weight, std=std, a=-3 * std, b=3 * std)

    def forward(self, tokens_BT: Tensor, labels_BT: Tensor | None = None) -> Tensor:
        """Predict each next token.

        Args:
            tokens_BT: int64, each below the vocabulary's size.
            labels_BT: int64, the token that follows each of `tokens_BT`; -100 is left out.

        Returns:
            Without labels the logits [B, T, V]; with labels their mean cross-entropy f32[], in
            nats a token.
        """
        # No buffer: `model.bfloat16()` would round it, and far tokens would lose their place.
        device = tokens_BT.device
        positions_T = torch.arange(tokens_BT.shape[1], dtype=torch.float32, device=device)
        angles_TJ = torch.outer(positions_T, rope_frequencies(self.config, device))
        cos_TJ, sin_TJ = angles_TJ.cos(), angles_TJ.sin()
        x_BTD = self.tok_embeddings(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD, cos_TJ, sin_TJ)
        logits_BTV = self.output(self.norm(x_BTD))
        if labels_BT is None:
            return logits_BTV
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), labels_BT.flatten())
