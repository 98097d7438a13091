"""Expert parallelism: each rank holds some experts; rows travel to them and back by all-to-all.

How many rows go where is decided by the data: the splits are numbers that are read as the program
runs, of unknown size in its graph. Tokens differ along the axis as along a data axis.

    rows V -> all_to_all -> rows V of this rank's experts -> all_to_all back
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lockstep.parallel.become import become
from lockstep.parallel.ranks import coordinate
from lockstep.spmd.claims import typed
from lockstep.spmd.mesh import axis as axis_named
from lockstep.spmd.typed_collectives import all_reduce, all_to_all
from lockstep.spmd.types import I, P, V


class Dispatched:
    """Experts of which each rank holds as many: a module called with rows and their experts."""

    axis: str
    held: int

    def forward(self, x_MD: Tensor, expert_M: Tensor) -> Tensor:
        to_M = expert_M // self.held
        order_M = to_M.argsort(stable=True)
        ranks = torch.arange(axis_named(self.axis).size, device=to_M.device)
        sent = (to_M[:, None] == ranks).sum(0)
        received = all_to_all(sent, self.axis, src=V, dst=V)
        out, back = sent.tolist(), received.tolist()
        rows = all_to_all(
            x_MD[order_M], self.axis, src=V, dst=V, input_splits=out, output_splits=back
        )
        expert = all_to_all(
            expert_M[order_M], self.axis, src=V, dst=V, input_splits=out, output_splits=back
        )
        made = super().forward(rows, expert - coordinate(self.axis) * self.held)  # type: ignore[misc]
        y_MD = all_to_all(made, self.axis, src=V, dst=V, input_splits=back, output_splits=out)
        return y_MD[order_M.argsort()]


def dispatched(experts: nn.Module, axis: str, held: int) -> None:
    """Let experts that are spread over an axis get their rows from all its ranks.

    Args:
        experts: changed in place; called with rows [M, D] and each row's expert, i64[M]. Its
            parameters are S(0) along the axis.
        axis: the mesh axis.
        held: how many experts each rank holds.
    """
    become(experts, Dispatched, axis=axis, held=held)


@torch.no_grad()
def balanced(bias_E: Tensor, load_E: Tensor, rate: float, *axes: str) -> Tensor:
    """Return a router's biases, moved towards an even load by a fixed step: no auxiliary loss.

    Args:
        bias_E: what is added to each expert's score where experts are chosen; I along the axes.
        load_E: how many rows of this rank each expert got since the last time.
        rate: the step; experts with more than the mean load go down by it, others up.
        axes: along which tokens differ.

    Returns:
        A new tensor, the same on every rank.
    """
    for axis in axes:
        load_E = all_reduce(load_E, axis, src=P, dst=I)
    load_E = typed(load_E, **dict.fromkeys(axes, I))
    return bias_E + rate * (load_E.mean() - load_E).sign()
