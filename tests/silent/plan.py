"""A Llama made parallel by a plan: its submodules are replaced by shards with typed collectives.

The model's own code stays as it is. Along tp: the embedding and the output cut by vocabulary, each
block's first matrices by rows, its last ones by columns; with `sequence` the stream between them,
and with it its norms and dropouts, is a shard of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep import I, P, R, S
from lockstep.models import llama

TOKENS = 1  # the dimension of a stream x_BTD that sequence parallelism cuts
# What a wrong program leaves out -> the one module in which it does.
PLACES = {
    "entry": "layers.1.ffn_norm",
    "exit": "layers.0.feed_forward.w2",
    "norm": "layers.1.attention_norm",
}


@dataclass(frozen=True)
class Plan:
    """How a model is cut over the ranks of tp.

    Args:
        ranks, rank: of tp, and this one's coordinate.
        sequence: the stream is a shard of the tokens.
        without: a collective or conversion that is left out, for a program that is wrong: "entry",
            "exit" or "norm" of one module, "mask", "maximum" or "target".
    """

    ranks: int
    rank: int
    sequence: bool = False
    without: str = ""

    def at(self, path: str) -> Plan:
        """The plan of one module."""
        return self if PLACES.get(self.without, path) == path else replace(self, without="")

    def cut(self, weight: Tensor, dim: int) -> nn.Parameter:
        """This rank's shard of a weight."""
        part = weight.detach().chunk(self.ranks, dim)[self.rank].clone()
        return ls.typed(nn.Parameter(part), tp=S(dim))

    def enter(self, x_BTD: Tensor) -> Tensor:
        """From the stream into a region in which each rank computes its own columns."""
        if self.sequence:
            return ls.all_gather(x_BTD, "tp", src=S(TOKENS), dst=R)
        return x_BTD if self.without == "entry" else ls.convert(x_BTD, "tp", src=I, dst=R)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """From the ranks' terms back to the stream."""
        if self.sequence:
            return ls.reduce_scatter(x_BTD, "tp", src=P, dst=S(TOKENS))
        return x_BTD if self.without == "exit" else ls.all_reduce(x_BTD, "tp", src=P, dst=I)


class Columns(nn.Module):
    """A linear layer of which each rank computes some of the columns."""

    def __init__(self, plan: Plan, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = plan.cut(linear.weight, 0)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Rows(nn.Module):
    """A linear layer that reads what `Columns` gave, and leaves the region."""

    def __init__(self, plan: Plan, linear: nn.Linear) -> None:
        super().__init__()
        self.plan = plan
        self.weight = plan.cut(linear.weight, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.plan.leave(F.linear(x, self.weight))


class Entry(nn.Module):
    """A norm of the stream, whose result enters a region."""

    def __init__(self, plan: Plan, norm: llama.RMSNorm) -> None:
        super().__init__()
        self.plan, self.eps = plan, norm.eps
        self.weight = ls.typed(norm.weight, tp=I)

    def forward(self, x_BTD: Tensor) -> Tensor:
        scale_BT1 = torch.rsqrt(x_BTD.float().pow(2).mean(-1, keepdim=True) + self.eps)
        normed_BTD = (x_BTD.float() * scale_BT1).type_as(x_BTD)
        if self.plan.sequence and self.plan.without != "norm":
            weight = ls.convert(self.weight, "tp", src=I, dst=R)
            return self.plan.enter(normed_BTD * weight)
        return self.plan.enter(normed_BTD * self.weight)


class Embedding(nn.Module):
    """An embedding of which each rank holds some of the vocabulary's rows."""

    def __init__(self, plan: Plan, embedding: nn.Embedding) -> None:
        super().__init__()
        self.plan = plan
        self.weight = plan.cut(embedding.weight, 0)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        own_BT = tokens_BT - self.plan.rank * rows
        held_BT = (own_BT >= 0) & (own_BT < rows)
        x_BTD = F.embedding(own_BT.clamp(0, rows - 1), self.weight)
        if self.plan.without != "mask":
            x_BTD = x_BTD.masked_fill(~held_BT[..., None], 0.0)
        return self.plan.leave(x_BTD)


class Gathered(Columns):
    """A linear layer whose columns come together on every rank."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        return ls.all_gather(super().forward(x_BTD), "tp", src=S(2), dst=I)


def parallelise(model: llama.Llama, plan: Plan, gather: bool = False) -> llama.Llama:
    """Replace a model's submodules; every rank holds the same whole model before.

    Args:
        gather: the output gives whole logits; else their shards, for `cross_entropy`.
    """
    tied = model.config.tied
    model.tok_embeddings = Embedding(plan.at("tok_embeddings"), model.tok_embeddings)
    for name, module in list(model.named_modules()):
        parent, _, last = name.rpartition(".")
        if isinstance(module, llama.RMSNorm):
            made: nn.Module = Entry(plan.at(name), module)
        elif last in ("wq", "wk", "wv", "w1", "w3"):
            made = Columns(plan.at(name), module)
        elif last in ("wo", "w2"):
            made = Rows(plan.at(name), module)
        else:
            continue
        setattr(model.get_submodule(parent), last, made)
    model.output = (Gathered if gather else Columns)(plan, model.output)
    if tied:
        model.output.weight = model.tok_embeddings.weight
    return model


def cross_entropy(plan: Plan, logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """The mean cross-entropy of logits cut by vocabulary, without bringing them together."""
    top_BT1 = logits_BTV.detach().amax(-1, keepdim=True)
    if plan.without != "maximum":
        top_BT1 = ls.all_reduce(top_BT1, "tp", src=ls.V, dst=I, op="max")
    shifted_BTV = logits_BTV - top_BT1
    total_BT = ls.all_reduce(shifted_BTV.exp().sum(-1), "tp", src=P, dst=I)
    columns = logits_BTV.shape[-1]
    own_BT = labels_BT - plan.rank * columns
    held_BT = (own_BT >= 0) & (own_BT < columns)
    found_BT1 = shifted_BTV.gather(-1, own_BT.clamp(0, columns - 1)[..., None])
    target_BT = found_BT1.squeeze(-1) * held_BT
    if plan.without != "target":
        target_BT = ls.all_reduce(target_BT, "tp", src=P, dst=I)
    return (total_BT.log() - target_BT).mean()
