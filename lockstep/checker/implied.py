"""A loss for a step that has none: its results, each weighted by numbers of no pattern."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from lockstep.spmd.claims import tensors_in


def differentiated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same step, which then differentiates what it returns.

    A result that is the same on all ranks gets the same gradient on each; one that varies, or is
    partial, stands for a sum over the ranks.
    """

    @functools.wraps(function)
    def step(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        results = [tensor for tensor in tensors_in(out) if tensor.requires_grad]
        if results:
            torch.autograd.backward(results, [_weights(result) for result in results])
        return out

    return step


def _weights(like: torch.Tensor) -> torch.Tensor:
    count = torch.arange(like.numel(), dtype=like.dtype, device=like.device)
    return (count * 0.7 + 0.3).cos().view(like.shape) + 0.1
