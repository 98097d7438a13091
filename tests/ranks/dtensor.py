"""A small model under DTensor's styles on two ranks; the same model in eager is its twin.

Of each way, whether loss, gradients, parameters and their placements are eager's, call by call; and
the texts of what is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import lockstep as ls
from lockstep.errors import CaptureError
from tests.ranks.launch import Here

VOCAB, WIDE = 32, 16
mesh = ls.mesh(tp=-1)


class Net(nn.Module):
    """An embedding, a block of two layers beside a residual, and a head."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(VOCAB, WIDE), nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, hidden), nn.Linear(hidden, WIDE)
        self.head = nn.Linear(WIDE, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        return self.head(x + self.down(nn.functional.gelu(self.up(self.norm(x)))))


def divided(sequence: bool, by_vocabulary: bool, hidden: int = 32) -> nn.Module:
    torch.manual_seed(0)
    rows = Shard(1) if sequence else Replicate()
    styles = {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=rows),
        "up": ColwiseParallel(input_layouts=rows),
        "down": RowwiseParallel(output_layouts=rows),
        "head": ColwiseParallel(
            input_layouts=rows,
            output_layouts=Shard(-1) if by_vocabulary else Replicate(),
            use_local_output=not by_vocabulary,
        ),
        **({"norm": SequenceParallel()} if sequence else {}),
    }
    return parallelize_module(Net(hidden), mesh, styles)


def loss_of(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())


def plain_step(model: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    loss = loss_of(model, ids, labels)
    loss.backward()
    return loss.detach()


def whole_step(model: nn.Module, optimizer: Any, ids: Tensor, labels: Tensor) -> Any:
    """Loss by vocabulary shards, clipping, and the optimizer, all of DTensors."""
    optimizer.zero_grad()
    with loss_parallel():
        loss = loss_of(model, ids, labels)
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss.detach(), norm


def bits(value: Any) -> Any:
    """A value's own part on this rank, and how it is divided."""
    if isinstance(value, DTensor):
        return value.to_local(), str(value.placements)
    return value, ""


def same(one: Any, other: Any) -> bool:
    (a, how), (b, as_well) = bits(one), bits(other)
    return how == as_well and torch.equal(a, b)


def tokens(call: int) -> tuple[Tensor, ...]:
    draws = torch.Generator().manual_seed(call)
    return tuple(torch.randint(VOCAB, (2, 2, 8), generator=draws).unbind(0))


def compare(sequence: bool, whole: bool, calls: int) -> list[list[bool]]:
    """Call by call: outputs, gradients and parameters beside eager's."""
    mine, eager = (divided(sequence, by_vocabulary=whole) for _ in range(2))
    function = whole_step if whole else plain_step
    step = ls.compile(mesh=mesh, backend="graph", eager_check="on" if whole else "off")(function)
    more = [[torch.optim.AdamW(m.parameters(), lr=0.1)] if whole else [] for m in (mine, eager)]
    found = []
    for call in range(calls):
        made = step(mine, *more[0], *tokens(call)), function(eager, *more[1], *tokens(call))
        outputs = zip(*map(torch.utils._pytree.tree_leaves, made), strict=True)
        pairs = zip(mine.parameters(), eager.parameters(), strict=True)
        grads = [same(a.grad, b.grad) and same(a, b) for a, b in pairs]
        found.append([*(same(*pair) for pair in outputs), *grads])
    return found


def refused(make: Any, *batch: Any) -> str:
    """The text of a refusal."""
    step = ls.compile(mesh=mesh, backend="graph")(plain_step)
    try:
        step(make(), *batch)
    except CaptureError as error:
        return str(error)
    return ""


def main() -> dict[str, Any]:
    ids = tokens(0)[0]
    return {
        "tensor": compare(False, whole=False, calls=2),
        "sequence": compare(True, whole=False, calls=2),
        "whole": compare(True, whole=True, calls=3),
        "uneven": refused(lambda: divided(False, False, hidden=33), *tokens(0)),
        "argument": refused(
            lambda: divided(False, False), distribute_tensor(ids, mesh, [Replicate()]), ids
        ),
    }


if __name__ == "__main__":
    here = Here()
    here.result(main())
