"""What abstract interpretation knows of a value along one axis: a little more than the types say.

R and I are one kind here, `EQUAL`: both are the same number on every rank, and only the forward
values that carry a gradient differ in it (see `ties`). Beside it stand what the language has no
word for: a literal zero, which fits everything, and "not known", which is never an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lockstep.spmd.types import P, R, S, Type, V


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind.

    Args:
        tag: "E" equal on all ranks, "Z" zero, "V" varying, "S" shard, "P" partial, "?" not known.
        dim: of S, the sharded dimension.
        before: of S, how much of that dimension lies left of the sharded factor: 1, but for what
            a reshape or a concatenation left (`[n, shard]` flattened has n).
        power: the true value is this one divided by (ranks on the axis) ** power. A local mean
            over a shard has 1, and so has the gradient of a P(mean) loss.
        flat: of E, the same number everywhere, so that any part of it is like any other.
        note: "lookup" rows read from a shard by indices that vary, not masked yet; "mask" a
            varying mask; "moved" rows in the order of an all-to-all; "gathered" shards side by
            side, of dimension `dim`; "cut" a part for each rank, cut along `dim`, stacked to be
            scattered; "echo" what an error left, which is not reported again.

    Example:
        >>> shard(1), PARTIAL, replace(PARTIAL, power=1)
        (S(1), P, P(mean))
    """

    tag: str
    dim: int = 0
    before: int = 1
    power: int = 0
    flat: bool = False
    note: str = ""

    def __repr__(self) -> str:
        if self.tag == "S":
            return f"S({self.dim})"
        if self.tag == "P":
            return "P(mean)" if self.power > 0 else "P"
        return {"E": "R|I", "Z": "0"}.get(self.tag, self.tag)

    @property
    def same(self) -> bool:
        """Whether every rank holds the same numbers."""
        return self.tag in "EZ"

    @property
    def varies(self) -> bool:
        """Whether ranks hold different numbers that are no terms of a sum."""
        return self.tag in "VS"

    def type(self) -> Type | None:
        """Return the language's word for this kind, R for what is equal; None if there is none."""
        if self.tag == "S":
            return S(self.dim) if self.before == 1 else V
        if self.tag == "P":
            return P("mean") if self.power > 0 else P
        return {"E": R, "Z": R, "V": V}.get(self.tag)


EQUAL = Kind("E")
FLAT = Kind("E", flat=True)
ZERO = Kind("Z", flat=True)
VARYING = Kind("V")
PARTIAL = Kind("P")
UNKNOWN = Kind("?")


def shard(dim: int, before: int = 1) -> Kind:
    """Return the kind of a shard of one dimension."""
    return Kind("S", dim, before)


def kind_of(type_: Type) -> Kind:
    """Return the kind that a type of the language stands for."""
    if type_.kind == "S":
        return shard(type_.dim or 0)
    if type_.kind == "P":
        return replace(PARTIAL, power=int(type_.factor == "mean"))
    return VARYING if type_.kind == "V" else EQUAL
