"""Numbers that a live step reads from tensors, each with the tensor that it was read from.

`1 / norm.item()` is a number to Python. Where it meets a tensor again, the tensor behind it takes
its place, so that the tape of the step shows what depends on what.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lockstep._compat import pytree

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
# What takes a whole number as a value; elsewhere it is a size, an index or a count.
_ARITHMETIC = {
    *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "true_divide", "pow", "pow_"),
    *(f"__{r}{name}__" for name in _BINARY for r in ("", "r", "i")),
}
_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__index__", "__array__")


class ReadFloat(float):
    """A float that was computed from tensors' values; `tensor` holds it in the trace."""

    tensor: torch.Tensor

    def __reduce__(self) -> Any:
        return float, (float(self),)


class ReadInt(int):
    """As ReadFloat, for a whole number."""

    tensor: torch.Tensor

    def __reduce__(self) -> Any:
        return int, (int(self),)


_KINDS = (ReadFloat, ReadInt)


def read(value: Any, tensor: torch.Tensor) -> Any:
    """A number with its tensor; what is no number, or a truth value, as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    found = ReadFloat(value) if isinstance(value, float) else ReadInt(value)
    found.tensor = tensor
    return found


class ReadNumbers(TorchFunctionMode):
    """Follows numbers from the tensors that they are read from to those that they meet.

    Args:
        note: is told each tensor whose value is read.
    """

    def __init__(self, note: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _READS and args and isinstance(args[0], torch.Tensor):
            self._note(args[0])
            value = func(*args, **kwargs)
            if name != "item":
                return value
            source = args[0].detach().reshape(())
            return read(value, source.double() if source.is_floating_point() else source)
        kinds = _KINDS if name in _ARITHMETIC else ReadFloat
        if not any(isinstance(leaf, kinds) for leaf in pytree.tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "To copy construct from a tensor")
                return func(*_as_tensors(args, kinds), **_as_tensors(kwargs, kinds))
        except TypeError:  # it takes numbers alone
            return func(*args, **kwargs)


def _as_tensors(tree: Any, kinds: Any) -> Any:
    return pytree.tree_map_only(kinds, lambda number: number.tensor, tree)


def _binary(name: str, kind: type, swapped: bool) -> Callable[[Any, Any], Any]:
    compute = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        plain = getattr(kind, f"__r{name}__" if swapped else f"__{name}__")(self, other)
        if plain is NotImplemented and isinstance(other, (int, float)):
            plain = compute(other, kind(self)) if swapped else compute(kind(self), other)
        if not isinstance(plain, (int, float)):
            return plain
        own, its = self.tensor, getattr(other, "tensor", other)
        return read(plain, compute(its, own) if swapped else compute(own, its))

    return method


def _unary(name: str, kind: type) -> Callable[[Any], Any]:
    compute = getattr(operator, name)
    return lambda self: read(compute(kind(self)), compute(self.tensor))


for _name in _BINARY:
    for _read_kind, _kind in ((ReadFloat, float), (ReadInt, int)):
        setattr(_read_kind, f"__{_name}__", _binary(_name, _kind, swapped=False))
        setattr(_read_kind, f"__r{_name}__", _binary(_name, _kind, swapped=True))
for _name in ("neg", "abs"):
    for _read_kind, _kind in ((ReadFloat, float), (ReadInt, int)):
        setattr(_read_kind, f"__{_name}__", _unary(_name, _kind))
