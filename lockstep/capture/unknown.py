"""Values of a live run that are not known yet, since they come of another rank's collective.

A rank runs on with them until it looks at one: what it then would do depends on the value.
"""

from __future__ import annotations

from typing import Any

import torch

from lockstep import _compat
from lockstep._compat import pytree


class NotYet(BaseException):
    """Python looks at a value that is not known in this run: past the step's `except Exception`."""


class Unknown(_compat.dispatch_mode()):  # type: ignore[misc]
    """Follows unknown values from operator to operator.

    A collective's operand that is unknown, or the result of a wait, is told by `is_unknown`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._memory: set[int] = set()
        self._kept: list[torch.Tensor] = []  # so that no memory is given twice

    def add(self, tensor: torch.Tensor) -> None:
        """A tensor's value is not known."""
        self._memory.add(_compat.storage_identity(tensor))
        self._kept.append(tensor)

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's value is not known, or shares memory with such a one."""
        return _compat.storage_identity(tensor) in self._memory

    def look(self, tensor: torch.Tensor) -> None:
        """Python looks at a tensor's value.

        Raises:
            NotYet: it is not known.
        """
        if self.is_unknown(tensor):
            raise NotYet

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        unknown = any(self.is_unknown(tensor) for tensor in given)
        if unknown and _LOOKS & set(func.tags):
            raise NotYet
        out = func(*args, **kwargs)
        if unknown:
            written = args[:1] if _compat.schema(func).is_mutable else ()
            for tensor in pytree.tree_leaves((out, written)):
                if isinstance(tensor, torch.Tensor):
                    self.add(tensor)
        return out


_LOOKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
