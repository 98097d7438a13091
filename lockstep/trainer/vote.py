"""What no rank may decide alone: whether to leave, and whether the training has gone wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Verdict:
    """How many ranks want to leave, and how many saw something odd; the same on every rank."""

    leave: int
    odd: int


def vote(leave: bool, odd: bool) -> Verdict:
    """Count the ranks' votes. Collective over all ranks.

    Args:
        leave: this rank was asked to leave.
        odd: this rank saw a loss or a norm that cannot be.
    """
    ballot = torch.tensor([int(leave), int(odd)])
    dist.all_reduce(ballot)
    return Verdict(*ballot.tolist())
