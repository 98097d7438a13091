"""A live run in float64, whatever the step says: what Python reads from tensors is exact then.

Numbers that were read are constants on the tape. In the step's own dtypes they would be rounded
another way on each mesh, and no comparison could tell that from a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from lockstep import _compat
from lockstep._compat import pytree


def promoted(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a check computes: float64 for every floating one."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


@contextlib.contextmanager
def in_doubles() -> Iterator[None]:
    """Compute in float64 while inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Doubles():
            yield
    finally:
        torch.set_default_dtype(before)


class _Doubles(_compat.dispatch_mode()):  # type: ignore[misc]
    """Every operator makes float64 where it would make another floating dtype."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(torch.dtype, promoted, (args, kwargs or {}))
        if not _compat.schema(func).is_mutable:
            args, kwargs = pytree.tree_map_only(torch.Tensor, _double, (args, kwargs))
        return func(*args, **kwargs)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor from outside, such as NumPy's, as a double."""
    dtype = promoted(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)
