"""The step of one stage of a pipeline: it walks the stage's table.

Micro-batches go through the parts of a model that lie on other ranks along an axis; outputs travel
to the next stage, gradients back, as messages that the captured graph holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.parallel.fully_sharded import Once, gathered_once
from lockstep.parallel.layout import layout
from lockstep.parallel.loss import job_loss, token_count, token_mean
from lockstep.parallel.schedule import Do, interleaved
from lockstep.parallel.tied import add_up_ends
from lockstep.spmd.claims import typed
from lockstep.spmd.messages import recv, send, settle
from lockstep.spmd.typed_collectives import all_reduce
from lockstep.spmd.types import I, P, Type, V


@dataclass(frozen=True)
class Pipe:
    """Where a stage is.

    Args:
        axis: a mesh axis; give it to `ls.compile(roles=...)`.
        stages: how many there are.
        at: which one this is, from 0.
        chunks: parts of the model that each stage has.
    """

    axis: str
    stages: int
    at: int
    chunks: int = 1

    @property
    def parts(self) -> int:
        """Of the whole model."""
        return self.stages * self.chunks

    @property
    def own(self) -> list[int]:
        """The parts of this stage."""
        return list(range(self.at, self.parts, self.stages))


class Stage(nn.Module):
    """What `pipeline_step` asks of a model's stage: derive from it.

    Args:
        pipe: where it is.
    """

    travels: Mapping[str, Type] = MappingProxyType({})
    """The types along other axes of what travels between the parts, where it is more than V: I for
    a copy on every rank, S(dim) for shards. Gradients that are sent back have the duals."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, part: int, x: Tensor) -> Tensor:
        """Compute one of the stage's parts: the first reads tokens, the last gives logits."""
        raise NotImplementedError

    def empty(self, tokens_BT: Tensor) -> Tensor:
        """A tensor of the form of what travels between the parts for these tokens."""
        raise NotImplementedError

    def shared(self) -> list[nn.Parameter]:
        """Parameters that the first and the last stage both hold, in the same order on both."""
        return []


def pipeline_step(
    stage: Stage, tokens_BT: Tensor, labels_BT: Tensor, *, micro_batches: int
) -> Tensor:
    """Run a stage's forwards and backwards of a batch; gradients are left to be reduced.

    With one chunk a stage by 1F1B, else interleaved. Every stage is given the same batch: the first
    reads the tokens, the last the labels. The loss is the mean over all tokens of all ranks and
    micro-batches, as of `forward_backward`. Shards are gathered and reduced as by `gathered_once`,
    and gradients of what both ends hold are added up.

    Args:
        stage: made by a plan.
        tokens_BT: int64, the batch of this rank's place along the data axes; the same along others.
        labels_BT: int64, the token that follows each; a negative one is left out.
        micro_batches: how many parts of the batch run one after the other.

    Returns:
        The job's mean loss: f32[], the same on every rank, without a gradient.

    Raises:
        UsageError: the micro-batches do not divide the batch, or an interleaved schedule's stages
            the micro-batches.
    """
    walk = _Walk.of(stage, tokens_BT, labels_BT, micro_batches)
    walk.go()
    pipe = stage.pipe
    if pipe.stages > 1 and pipe.at in (0, pipe.stages - 1):
        add_up_ends(stage.shared(), pipe.axis, 1 if pipe.at else -1)
    return walk.told()


@torch.no_grad()
def pipeline_loss(
    stage: Stage, tokens_BT: Tensor, labels_BT: Tensor, *, micro_batches: int
) -> Tensor:
    """Run a stage's forwards alone, as of an evaluation; see `pipeline_step`.

    Args:
        stage, tokens_BT, labels_BT, micro_batches: as for `pipeline_step`.

    Returns:
        The job's mean loss: f32[], the same on every rank.

    Raises:
        UsageError: as `pipeline_step`.
    """
    walk = _Walk.of(stage, tokens_BT, labels_BT, micro_batches)
    walk.go(backward=False)
    return walk.told()


@dataclass
class _Walk:
    """One stage on its way through its table."""

    stage: Stage
    tokens: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]
    count: Tensor
    once: Once = field(default_factory=Once)
    loss: Tensor | None = None
    _read: dict[Any, Tensor] = field(default_factory=dict)  # what a part read, and its output
    _made: dict[Any, Tensor] = field(default_factory=dict)
    _ready: dict[Any, Tensor] = field(default_factory=dict)  # to be read: outputs, gradients

    @classmethod
    def of(cls, stage: Stage, tokens_BT: Tensor, labels_BT: Tensor, batches: int) -> _Walk:
        """At its start, with a whole batch.

        Raises:
            UsageError: the micro-batches do not divide the batch.
        """
        if batches < 1 or len(tokens_BT) % batches:
            raise UsageError(
                f"{batches} micro-batches do not divide a rank's batch of {len(tokens_BT)}",
                fix="another batch size, or another number of micro-batches",
            )
        how = layout(stage)
        tokens_BT, labels_BT = how.own_tokens(tokens_BT), how.own_tokens(labels_BT)
        count = token_count(labels_BT, *how.tokens)
        return cls(stage, tokens_BT.chunk(batches), labels_BT.chunk(batches), count)

    def go(self, backward: bool = True) -> None:
        """Do what the stage's rows say, or of them what forwards need."""
        pipe = self.stage.pipe
        with gathered_once() as self.once:
            for row in interleaved(pipe.stages, len(self.tokens), pipe.chunks)[pipe.at]:
                if backward or row.forward:
                    getattr(self, f"_{row.what}")(row)

    def told(self) -> Tensor:
        """The job's loss, once all messages are there."""
        pipe, loss = self.stage.pipe, self.loss if self.loss is not None else torch.zeros(())
        loss = settle(loss)
        if pipe.stages > 1:  # the other stages have none of it
            loss = all_reduce(loss, pipe.axis, src=P, dst=I)
        loss = job_loss(loss, *layout(self.stage).tokens)
        return typed(loss, **{pipe.axis: I}) if pipe.stages > 1 else loss

    @property
    def _last(self) -> int:
        return self.stage.pipe.parts - 1

    def _recv(self, row: Do) -> None:
        like = self.stage.empty(self.tokens[row.batch])
        kind = "output" if row.place < 0 else "gradient"
        got = recv(like, self.stage.pipe.axis, from_=row.place)
        self._ready[kind, row.part, row.batch] = self._typed(got, kind)

    def _send(self, row: Do) -> None:
        kind = "output" if row.place > 0 else "gradient"
        value = self._ready.pop((kind, row.part + row.place, row.batch))
        send(self._typed(value, kind), self.stage.pipe.axis, to=row.place)

    def _typed(self, value: Tensor, kind: str) -> Tensor:
        """Say at both ends what travels: a build does not see the other end's program."""
        types = {**dict.fromkeys(layout(self.stage).tokens, V), **self.stage.travels}
        return typed(
            value, **{axis: t if kind == "output" else t.dual for axis, t in types.items()}
        )

    def _forward(self, row: Do) -> None:
        key = row.part, row.batch
        if row.part == 0:
            x = self.tokens[row.batch]
        else:
            x = self._ready.pop(("output", *key))
        if row.part > 0 and torch.is_grad_enabled():
            self._read[key] = x.requires_grad_()
        out = self.stage(row.part, x)
        if row.part == self._last:
            how, labels = layout(self.stage), self.labels[row.batch]
            losses = how.losses(out, labels)
            out = token_mean(losses, labels, *how.tokens, count=self.count)
            self.loss = out.detach() if self.loss is None else self.loss + out.detach()
        else:
            self._ready["output", row.part + 1, row.batch] = out.detach()
        if torch.is_grad_enabled():
            self._made[key] = out

    def _backward(self, row: Do) -> None:
        key = row.part, row.batch
        out = self._made.pop(key)
        seed = None if row.part == self._last else self._ready.pop(("gradient", *key))
        self.once.last = row.batch == len(self.tokens) - 1  # of this part
        torch.autograd.backward(out, seed)
        if row.part > 0:
            grad = self._read.pop(key).grad
            assert grad is not None  # a part computes with what it reads
            self._ready["gradient", row.part - 1, row.batch] = grad
