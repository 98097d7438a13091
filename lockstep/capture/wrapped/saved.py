"""What autograd saves of parameters that are cut again after the forward: no tensor, but which one.

The backward then reads what was gathered for it, and the forward's copy is done with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lockstep import _compat
from lockstep._compat_fsdp import saving_hooks


class Gathered(Protocol):
    """A parameter with what was gathered of it, the latest last."""

    wholes: list[torch.Tensor]


@dataclass(frozen=True)
class _Handle:
    parameter: Gathered
    turned: bool


class Saving:
    """Saves handles in place of gathered parameters, from `begin` to `end`.

    Args:
        parameters: of which to save handles.
    """

    def __init__(self, parameters: Sequence[Gathered]) -> None:
        self._parameters = parameters
        self._hooks: Any = None

    def begin(self) -> None:
        """Begin, unless a checkpoint is around: it saves nothing at all."""
        above = saving_hooks()
        if self._hooks is None and (above is None or isinstance(_owner(above), Saving)):
            self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
            self._hooks.__enter__()

    def end(self) -> None:
        """End, if it has begun."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.__exit__(None, None, None)

    def _pack(self, tensor: torch.Tensor) -> Any:
        memory = _compat.storage_identity(tensor)
        for parameter in self._parameters:
            whole = parameter.wholes[-1]
            if _compat.storage_identity(whole) != memory or whole.dtype != tensor.dtype:
                continue
            if _lies_as(tensor, whole):
                return _Handle(parameter, turned=False)
            if whole.dim() == 2 and _lies_as(tensor, whole.t()):
                return _Handle(parameter, turned=True)
        return tensor

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, _Handle):
            found: torch.Tensor = saved
            return found
        whole = saved.parameter.wholes[-1]
        return whole.t() if saved.turned else whole


def _owner(hooks: tuple[Any, Any]) -> Any:
    return getattr(hooks[0], "__self__", None)


def _lies_as(one: torch.Tensor, other: torch.Tensor) -> bool:
    shape = one.shape == other.shape and one.stride() == other.stride()
    return shape and one.storage_offset() == other.storage_offset()
