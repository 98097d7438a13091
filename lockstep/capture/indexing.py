"""Indexing by the rank: `x[rank]`, `x[rank * n : (rank + 1) * n]`, `x.chunk(n)[rank]`.

torch's own indexing wants Python numbers, and gives a slice by unknown bounds an unknown length.
Here a slice whose bounds are a known distance apart is a window of known length at an unknown
place.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.origin import is_own_file, is_torch_file, is_user_file, user_line
from lockstep.errors import CaptureError

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_PARTS = ("chunk", "split", "unbind", "tensor_split", "split_with_sizes")
_MADE = (torch.tensor, torch.as_tensor)


class Parts(tuple[torch.Tensor, ...]):
    """Equal parts of a tensor, as a tuple that the rank may index.

    `whole`, `dim` and `size` say what they are parts of; `size` 0: `unbind`, whose parts have a
    dimension less.
    """

    whole: torch.Tensor
    dim: int
    size: int

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, torch.SymInt):
            return tuple.__getitem__(self, index)
        if self.size == 0:
            return _selected(self.whole, self.dim, index)
        return self.whole.narrow(self.dim, _first(index, len(self)) * self.size, self.size)


pytree.register_pytree_node(Parts, lambda parts: (list(parts), None), lambda parts, _: tuple(parts))


def plain(result: Any) -> Any:
    """A step's result with ordinary tuples in place of `Parts`."""
    found = pytree.tree_leaves(result, is_leaf=lambda value: isinstance(value, Parts))
    if not any(isinstance(value, Parts) for value in found):
        return result
    return pytree.tree_map(
        lambda value: tuple(value) if isinstance(value, Parts) else value,
        result,
        is_leaf=lambda value: isinstance(value, Parts),
    )


class Indexing(TorchFunctionMode):
    """Lets user code index tensors by numbers of the trace, while inside."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__ and _symbolic(args[1]):
            return _taken(args[0], args[1])
        if func is torch.Tensor.__setitem__ and _symbolic(args[1]):
            _taken(args[0], args[1])[...] = args[2]
            return None
        if func in _MADE and args and _holds_symbol(args[0]):
            return _tensor(args[0], **kwargs)
        out = func(*args, **kwargs)
        if type(out) is tuple and getattr(func, "__name__", "") in _PARTS:
            if _is_asked_by_user(sys._getframe(1), func.__name__):
                return _parts(func.__name__, out, args, kwargs)
        return out


def _is_asked_by_user(frame: FrameType | None, name: str) -> bool:
    """Whether a function was called by user code; some go through a Python function of torch."""
    ways = (name, "handle_torch_function")
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if is_torch_file(frame.f_code.co_filename):
            if frame.f_code.co_name not in ways:
                return False
        elif not is_own_file(frame.f_code.co_filename):  # of ours: another mode, asked as we are
            return False
        frame = frame.f_back
    return frame is not None


def _symbolic(index: Any) -> bool:
    entries = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(e, _SYMBOLS)
        or (isinstance(e, slice) and any(isinstance(b, _SYMBOLS) for b in (e.start, e.stop)))
        for e in entries
    )


def _taken(x: torch.Tensor, index: Any) -> torch.Tensor:
    """`x[index]`: windows at unknown places first, what is left of the index then."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(e is Ellipsis for e in entries):
        at = next(i for i, e in enumerate(entries) if e is Ellipsis)
        missing = x.dim() - sum(e is not None for e in entries) + 1
        entries[at : at + 1] = [slice(None)] * missing
    rest: list[Any] = []
    dim = 0
    for entry in entries:
        if isinstance(entry, torch.SymInt):
            x = x.narrow(dim, _first(entry, x.size(dim)), 1)
            rest.append(0)
        elif isinstance(entry, slice) and _symbolic(entry):
            x = _window(x, dim, entry)
            rest.append(slice(None))
        else:
            rest.append(entry)
        dim += entry is not None
    return x[tuple(rest)]


def _window(x: torch.Tensor, dim: int, entry: slice) -> torch.Tensor:
    if entry.step not in (None, 1):
        raise _no_index("a slice by the rank with a step")
    start = 0 if entry.start is None else entry.start
    stop = x.size(dim) if entry.stop is None else entry.stop
    length = _compat.expression(stop - start)
    if length is None or not length.is_Integer:
        return x[(*[slice(None)] * dim, slice(start, stop))]  # inside its handler, the mode is off
    return x.narrow(dim, _first(start, x.size(dim)), int(length))


def _selected(x: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    return x.narrow(dim, _first(index, x.size(dim)), 1).squeeze(dim)


def _first(index: Any, size: int) -> Any:
    """An index that counts from the start: one that may be negative counts from the end."""
    if isinstance(index, torch.SymInt) and not _compat.surely(index >= 0):
        raise _no_index(f"an index by the rank that may be negative, into {size}")
    return index


def _no_index(what: str) -> CaptureError:
    return CaptureError(
        f"the step takes {what}",
        where=user_line(),
        why="where it begins is known only as the program runs",
        fix=["count from the start: x[(rank - 1) % n]", "take a window: x.narrow(0, rank * n, n)"],
    )


def _holds_symbol(data: Any) -> bool:
    if isinstance(data, (list, tuple)):
        return any(_holds_symbol(item) for item in data)
    return isinstance(data, _SYMBOLS)


def _tensor(data: Any, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
    """`torch.tensor(data)` where some of its numbers are known only as the program runs."""
    if isinstance(data, (list, tuple)):
        kind = dtype or _kind(data)
        return torch.stack([_tensor(item, dtype=kind, device=device) for item in data])
    return torch.full((), data, dtype=dtype or _kind(data), device=device)


def _kind(data: Any) -> torch.dtype:
    leaves = pytree.tree_leaves(data)
    if any(isinstance(leaf, (float, torch.SymFloat)) for leaf in leaves):
        return torch.get_default_dtype()
    if all(isinstance(leaf, (bool, torch.SymBool)) for leaf in leaves):
        return torch.bool
    return torch.int64


def _parts(name: str, out: tuple[torch.Tensor, ...], args: Any, kwargs: Any) -> Any:
    """A result of `chunk` and its kin, as parts that the rank may index."""
    if not out or any(part.shape != out[0].shape for part in out):
        return out
    whole = args[0] if args else kwargs.get("input", kwargs.get("tensor"))
    at = 1 if name == "unbind" else 2
    dim = kwargs.get("dim", args[at] if len(args) > at else 0)
    if not isinstance(whole, torch.Tensor) or not isinstance(dim, int):
        return out
    parts = Parts(out)
    parts.whole, parts.dim = whole, dim % whole.dim()
    parts.size = 0 if name == "unbind" else out[0].size(dim)
    return parts
