"""The stream between blocks along a tensor-parallel axis, and how to enter and leave its regions.

Without sequence parallelism the stream is I, the same on every rank. With it the stream is S(1), a
shard of the tokens, and so is all that norms and dropouts compute on it.

    enter   I -> R: nothing, backward all_reduce    S(1) -> R: all_gather, backward reduce_scatter
    leave   P -> I: all_reduce, backward nothing    P -> S(1): reduce_scatter, backward all_gather
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lockstep.parallel.become import become, read_through
from lockstep.spmd.typed_collectives import all_gather, all_reduce, convert, reduce_scatter
from lockstep.spmd.types import I, P, R, S

TOKENS = 1  # the dimension of a stream x_BTD that is cut


@dataclass(frozen=True)
class Stream:
    """How the stream x_BTD lies along a mesh axis.

    Args:
        axis: the mesh axis.
        sequence: whether each rank holds a shard of the tokens, rather than all of them.
    """

    axis: str
    sequence: bool = False

    def enter(self, x_BTD: Tensor) -> Tensor:
        """From the stream into a region where each rank computes its own columns: all tokens, R."""
        if self.sequence:
            return all_gather(x_BTD, self.axis, src=S(TOKENS), dst=R)
        return convert(x_BTD, self.axis, src=I, dst=R)

    def leave(self, x_BTD: Tensor) -> Tensor:
        """From the ranks' terms of a sum, P, back to the stream."""
        if self.sequence:
            return reduce_scatter(x_BTD, self.axis, src=P, dst=S(TOKENS))
        return all_reduce(x_BTD, self.axis, src=P, dst=I)

    def weight(self, weight: Tensor) -> Tensor:
        """A weight that every rank holds whole (I), as what is computed on the stream reads it."""
        return convert(weight, self.axis, src=I, dst=R) if self.sequence else weight


class Entering:
    """A module of the stream, such as a norm, whose result enters a region."""

    stream: Stream

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.stream.enter(super().forward(x_BTD))  # type: ignore[misc]


def entering(norm: nn.Module, stream: Stream) -> None:
    """Let a norm of the stream give what the region after it reads: stream -> R.

    Args:
        norm: changed in place; its parameters are I along the stream's axis.
        stream: how the stream lies.
    """
    on_stream(norm, stream)
    become(norm, Entering, stream=stream)


def on_stream(module: nn.Module, stream: Stream) -> None:
    """Let a module compute on the stream: where that is a shard, its weights' gradients add up.

    Args:
        module: changed in place; its parameters are I along the stream's axis.
        stream: how the stream lies.
    """
    names: Any = [name for name, _ in module.named_parameters(recurse=False)]
    for name in names if stream.sequence else ():
        read_through(module, name, stream.weight)
