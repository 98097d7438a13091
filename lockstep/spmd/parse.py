"""Read types back from the text that they print as."""

from __future__ import annotations

import re

from lockstep.errors import UsageError
from lockstep.spmd.types import I, P, R, S, TensorType, Type, V

_NAMED = {"R": R, "I": I, "V": V, "P": P, "P(sum)": P, "P(mean)": P("mean")}
_SHARD = re.compile(r"S\((\d+)\)")
_ENTRY = re.compile(r"([A-Za-z_]\w*)\s*:\s*([A-Z](?:\(\s*\w+\s*\))?)")
_TENSOR = re.compile(r"(\w+)\s*\[(.*?)\]\s*(?:\{(.*)\})?")
_SIZE = re.compile(r"(\w[\w+*/() -]*)((?:@[A-Za-z_]\w*)*)")


def parse_type(text: str) -> Type:
    """Read one type.

    Raises:
        UsageError: the text is none.

    Example:
        >>> parse_type("S(1)"), parse_type("P(mean)")
        (S(1), P(mean))
    """
    short = re.sub(r"\s", "", text)
    shard = _SHARD.fullmatch(short)
    if shard:
        return S(int(shard.group(1)))
    if short not in _NAMED:
        raise UsageError(f"{text!r} is no type", want="R, I, V, S(dim), P or P(mean)")
    return _NAMED[short]


def parse_types(text: str) -> dict[str, Type]:
    """Read axes and their types, with or without braces.

    Raises:
        UsageError: an entry that is not `axis: type`, or an axis named twice.

    Example:
        >>> parse_types("dp: R, tp: S(1)")
        {'dp': R, 'tp': S(1)}
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1].strip()
    types: dict[str, Type] = {}
    for entry in inner.split(",") if inner else []:
        found = _ENTRY.fullmatch(entry.strip())
        if found is None:
            raise _unreadable(text, entry.strip() or "an empty entry", "tp: S(1)")
        axis, kind = found.groups()
        if axis in types:
            raise UsageError(f"{text!r} names the axis {axis} twice")
        types[axis] = parse_type(kind)
    return types


def parse_tensor_type(text: str) -> TensorType:
    """Read a tensor's type: what `str` of it gives reads back as an equal one.

    The `@axis` marks may be left out, since the braces say the same; where they stand, they must
    agree with the braces.

    Raises:
        UsageError: unreadable, or marks and braces that contradict each other.

    Example:
        >>> parse_tensor_type("f32[8, 16@tp] {dp: R, tp: S(1)}").types
        {'dp': R, 'tp': S(1)}
    """
    found = _TENSOR.fullmatch(text.strip())
    if found is None:
        raise _unreadable(text, text, "f32[8, 16@tp] {dp: R, tp: S(1)}")
    dtype, sizes, braces = found.groups()
    types = parse_types(braces or "")
    shape: list[int | str] = []
    for dim, entry in enumerate(sizes.split(",") if sizes.strip() else []):
        size = _SIZE.fullmatch(entry.strip())
        if size is None:
            raise _unreadable(text, entry.strip() or "an empty size", "16 or 16@tp")
        name, marks = size.groups()
        shape.append(int(name) if name.isdecimal() else name)
        for axis in filter(None, marks.split("@")):
            if types.get(axis) != S(dim):
                raise UsageError(
                    f"{text!r} contradicts itself on {axis}",
                    got=f"@{axis} on dimension {dim}, and {axis}: {types.get(axis, 'nothing')}",
                    want=f"{axis}: S({dim})",
                )
    return TensorType(dtype, tuple(shape), types)


def _unreadable(text: str, part: str, example: str) -> UsageError:
    return UsageError(f"{text!r} is no type", got=part, want=f"such as {example}")
