"""Mixed precision: parameters, gradients and reductions stay wide, the computation is narrow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lockstep import _compat
from lockstep.parallel.become import read_through


@dataclass(frozen=True)
class Cast:
    """How a parameter is read: in another dtype; its gradient comes back in its own."""

    dtype: torch.dtype

    def __call__(self, parameter: Tensor) -> Tensor:
        return parameter.to(self.dtype)


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Let every module read its parameters in a dtype; what the optimizer holds keeps its own.

    For parameters that `fully_shard` cuts, give it the dtype instead.

    Args:
        model: changed in place.
        dtype: such as bfloat16.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> compute_in(model, torch.bfloat16)
        >>> model.weight.dtype, next(model.parameters()).dtype
        (torch.bfloat16, torch.float32)
    """
    for module in model.modules():
        for name, parameter in _compat.module_tables(module)[0].items():
            if parameter is not None:
                read_through(module, name, Cast(dtype))
