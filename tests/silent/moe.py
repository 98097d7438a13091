"""A Llama whose feed-forwards are experts spread over ep, each token sent to one by all-to-all.

Tokens differ along ep as along dp. Each rank sends every expert as many rows: those of its tokens
that chose it, or zeros, which experts turn to zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep as ls
from lockstep import I, P, R, S, V
from tests.silent.llamas import SMALL, Program, batch, model


class Experts(nn.Module):
    """SwiGLU experts with a router; this rank holds its share of them.

    Args:
        counts: how many experts each rank holds; not all alike where the exchange is uneven.
        without: "return": rows stay with their experts; "router": its weight is not converted.
    """

    def __init__(self, counts: list[int], rank: int, seed: int, without: str) -> None:
        super().__init__()
        self.counts, self.rank, self.without = counts, rank, without
        self.ranks, self.experts = len(counts), sum(counts)
        drawn = torch.Generator().manual_seed(seed)
        width, ffn = SMALL["dim"], SMALL["ffn"]
        own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        self.router = nn.Parameter(torch.randn(self.experts, width, generator=drawn))
        shapes = {"w1": (ffn, width), "w2": (width, ffn), "w3": (ffn, width)}
        for name, shape in shapes.items():
            whole_EFD = 0.2 * torch.randn(self.experts, *shape, generator=drawn)
            part = ls.typed(nn.Parameter(whole_EFD[own].clone()), ep=S(0))
            setattr(self, name, part)
        ls.typed(self.router, ep=I)

    def exchanged(self, rows_ENTD: Tensor, back: bool = False) -> Tensor:
        """Rows of every expert to the ranks that hold it, or back."""
        ranks, tokens = self.ranks, rows_ENTD.shape[-2]
        sent = [count * tokens for count in self.counts]
        kept = [self.counts[self.rank] * tokens] * ranks
        splits = (kept, sent) if back else (sent, kept)
        flat = rows_ENTD.flatten(0, -2)
        return ls.all_to_all(
            flat, "ep", src=V, dst=V, input_splits=splits[0], output_splits=splits[1]
        )

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        router = self.router
        if self.without != "router":
            router = ls.convert(router, "ep", src=I, dst=R)
        shares_NE = F.linear(x_ND, router).softmax(-1)
        chosen_NE = F.one_hot(shares_NE.argmax(-1), self.experts).to(x_ND.dtype)
        sent_END = torch.einsum("ne,nd->end", chosen_NE, x_ND)
        own = self.counts[self.rank]
        held = self.exchanged(sent_END).unflatten(0, (self.ranks, own, -1)).transpose(0, 1)
        held_EMD = held.flatten(1, 2)
        gated_EMF = F.silu(held_EMD @ self.w1.mT) * (held_EMD @ self.w3.mT)
        made = (gated_EMF @ self.w2.mT).unflatten(1, (self.ranks, -1)).transpose(0, 1)
        back = made.flatten(0, 2) if self.without == "return" else self.exchanged(made, back=True)
        read_END = back.unflatten(0, (self.experts, -1))
        return torch.einsum("end,ne->nd", read_END, chosen_NE * shares_NE).view_as(x_BTD)


def program(name: str, counts: list[int], without: str, line: str) -> Program:
    """Return a Llama with so many of the experts on each rank of ep; see `llamas.program`."""

    def make(left_out: str) -> Callable[[Any], Any]:
        def on(mesh: Any) -> Any:
            ranks, rank = mesh.size(), mesh.get_local_rank()
            made = model(mesh)
            ls.type_parameters(made, {"*": {"ep": R}})
            held = counts if ranks == len(counts) else [sum(counts)]
            for i, layer in enumerate(made.layers):
                layer.feed_forward = Experts(held, rank, i, left_out)
            return (made, *(tensor.chunk(ranks)[rank].clone() for tensor in batch()))

        return on

    def step_of(left_out: str) -> Callable[..., Any]:
        def step(made: nn.Module, tokens_BT: Tensor, labels_BT: Tensor) -> Tensor:
            loss = ls.loss(made(tokens_BT, labels_BT), ep="mean")
            loss.backward()
            for layer in made.layers:
                for weight in layer.feed_forward.parameters():
                    weight.grad = weight.grad / layer.feed_forward.ranks
            for name, weight in made.named_parameters():
                if "feed_forward" not in name and left_out != "reduction":
                    weight.grad = ls.all_reduce(weight.grad, "ep", src=P("mean"), dst=R)
            return loss

        return step

    return Program(name, {"ep": len(counts)}, step_of, make, without, line)


PROGRAMS = [
    program("mixture of experts, ep", [2, 2], "return", "self.dropout(self.feed_forward("),
    program("mixture of experts, uneven splits", [2, 3], "router", "F.linear(x_ND, router)"),
]
