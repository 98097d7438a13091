"""Activation checkpointing: a module keeps its inputs alone, and computes the rest anew."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from lockstep.parallel.become import become


class Recomputed:
    """A module whose forward runs again within the backward; collectives in it run again too."""

    def forward(self, *args: Any) -> Any:
        return checkpoint(super().forward, *args, use_reentrant=False)  # type: ignore[misc]


def recompute(module: nn.Module) -> nn.Module:
    """Compute a module's activations anew in the backward, in place of keeping them.

    Args:
        module: changed in place. Its forward takes positional arguments.

    Returns:
        The module.

    Example:
        >>> layer = recompute(nn.Linear(2, 2))
        >>> layer(torch.ones(2)).sum().backward()                            # doctest: +SKIP
    """
    return become(module, Recomputed)
