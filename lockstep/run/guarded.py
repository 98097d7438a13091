"""What a step returns requires grad where eager's does, and says so when a backward asks for it.

A program holds the step's own backward and no way back through what it returned. A detached tensor
would drop the caller's gradient without a word.
"""

from __future__ import annotations

from typing import Any

import torch

from lockstep.errors import UsageError


class _NoWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:  # type: ignore[override]
        raise UsageError(
            "backward() was called through what a compiled step returned",
            why="its gradient ends there: the program holds the step's own backward alone",
            fix=[
                "call backward() inside the step",
                "detach() it, where only its value is meant",
                "decorate an evaluation with @torch.no_grad()",
            ],
        )


_anchor = torch.empty(0, requires_grad=True)


def guarded(value: torch.Tensor) -> torch.Tensor:
    """Return the value, requiring grad as eager's would; a backward through it is an error."""
    return _NoWayBack.apply(_anchor, value)
