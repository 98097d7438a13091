"""What is known of a value along one mesh axis: R, I, V, S(d) or P; and of a whole tensor.

A type is its own text: manifests, fingerprints and variant keys hold it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from lockstep.errors import UsageError

FACTORS = ("sum", "mean")


class Type(str):
    """One type of the language; immutable, and equal to its text.

    Args:
        kind: "R", "I", "V", "S" or "P".
        dim: the sharded dimension, of S alone.
        factor: "sum" or "mean", of P alone.

    Example:
        >>> S(1), S(1).dim, P.factor, P("mean")
        (S(1), 1, 'sum', P(mean))
    """

    kind: str
    dim: int | None
    factor: str | None

    def __new__(cls, kind: str, dim: int | None = None, factor: str | None = None) -> Type:
        text = kind if dim is None else f"{kind}({dim})"
        self = super().__new__(cls, text if factor in (None, "sum") else f"{kind}({factor})")
        for name, value in (("kind", kind), ("dim", dim), ("factor", factor)):
            object.__setattr__(self, name, value)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a type does not change: {self}.{name}")

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        return type(self), (self.kind, self.dim, self.factor)

    @property
    def dual(self) -> Type:
        """The type of the gradient of a value of this type: R and P swap, the rest keep theirs."""
        return {"R": P, "P": R}.get(self.kind, self)


class Partial(Type):
    """P: `P` alone is a pending sum, `P("mean")` a pending mean."""

    def __call__(self, factor: str) -> Type:
        """Return P with this factor.

        Raises:
            UsageError: neither "sum" nor "mean".
        """
        if factor not in FACTORS:
            raise UsageError(f"P({factor!r})", want='P, which is a sum, or P("mean")')
        return P if factor == "sum" else _P_MEAN


R = Type("R")
I = Type("I")
V = Type("V")
P = Partial("P", factor="sum")
_P_MEAN = Partial("P", factor="mean")
_shards: dict[int, Type] = {}


def S(dim: int) -> Type:
    """Varying, and known to be this rank's shard of a dimension.

    Args:
        dim: counted from 0 at the front.

    Returns:
        The one `Type` of this dimension.

    Raises:
        UsageError: not a dimension from 0 on.

    Example:
        >>> S(1) is S(1), S(0).dual
        (True, S(0))
    """
    if type(dim) is int and dim in _shards:
        return _shards[dim]
    if type(dim) is not int or dim < 0:
        raise UsageError(
            f"S({dim!r}) is no shard",
            want="a dimension counted from 0 at the front",
            fix="S(x.dim() - 1) for the last dimension of x",
        )
    return _shards.setdefault(dim, Type("S", dim))


def checked_type(value: Any, who: str) -> Type:
    """Return a value that is a type.

    Raises:
        UsageError: it is not; told apart is an S without its dimension.
    """
    if isinstance(value, Type):
        return value
    if value is S:
        raise UsageError(f"{who}: S needs its dimension", fix="S(0) for shards of dimension 0")
    raise UsageError(f"{who}: {value!r} is no type", want='R, I, V, S(dim), P or P("mean")')


DTYPES = {
    "f16": torch.float16,
    "f32": torch.float32,
    "f64": torch.float64,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
_SHORT = {dtype: name for name, dtype in DTYPES.items()}


def dtype_text(dtype: torch.dtype) -> str:
    """Return a dtype's short name: f32, bf16, i64; others keep torch's, such as float8_e5m2."""
    return _SHORT.get(dtype) or str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class TensorType:
    """A tensor's dtype, local shape, and type along each mesh axis.

    Args:
        dtype: as `dtype_text` gives it.
        shape: this rank's; a dimension of unknown size is a name, such as "u0".
        types: axis -> `Type`, printed in this order.

    Raises:
        UsageError: a shard of a dimension that the tensor does not have.

    Example:
        >>> print(TensorType("f32", (8, 16), {"dp": R, "tp": S(1)}))
        f32[8, 16@tp] {dp: R, tp: S(1)}
    """

    dtype: str
    shape: tuple[int | str, ...] = ()
    types: Mapping[str, Type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for axis, kind in self.types.items():
            if kind.dim is not None and kind.dim >= len(self.shape):
                raise UsageError(
                    f"{axis}: {kind} of a tensor of {len(self.shape)} dimension(s)",
                    want=f"S(0) to S({len(self.shape) - 1})" if self.shape else "no S: a scalar",
                )

    @classmethod
    def of(cls, tensor: torch.Tensor, types: Mapping[str, Type]) -> TensorType:
        """Return the type of a tensor along the axes given; symbolic sizes by their names."""
        shape = tuple(n if isinstance(n, int) else str(n) for n in tensor.shape)
        return cls(dtype_text(tensor.dtype), shape, dict(types))

    def __str__(self) -> str:
        sizes = ", ".join("@".join([str(n), *self._axes(d)]) for d, n in enumerate(self.shape))
        return f"{self.dtype}[{sizes}] {types_text(self.types)}"

    def _axes(self, dim: int) -> Iterator[str]:
        return (axis for axis, kind in self.types.items() if kind.dim == dim)


def types_text(types: Mapping[str, Type]) -> str:
    """Return axes and their types in braces.

    Example:
        >>> types_text({"dp": R, "tp": S(1)})
        '{dp: R, tp: S(1)}'
    """
    return "{" + ", ".join(f"{axis}: {kind}" for axis, kind in types.items()) + "}"
