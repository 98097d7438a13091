"""What an operator of a graph does to memory, read from its schema."""

from __future__ import annotations

import functools
from typing import Any

import torch

from lockstep import _compat


def must_stay(target: Any) -> bool:
    """Whether a graph call must stay though nothing reads it: it writes, draws, communicates."""
    if not isinstance(target, _compat.op_overload_type()):
        return False
    if target.namespace in ("_c10d_functional", "c10d", "lockstep"):
        return True
    schema = _compat.schema(target)
    if schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags:
        return True
    return "assert" in schema.name


def returns_its_first_argument(target: Any) -> bool:
    """Whether an operator writes its first argument and returns it, as `add_` does."""
    schema = _compat.schema_or_none(target)
    if schema is None or len(schema.returns) != 1 or not schema.arguments:
        return False
    first, back = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return bool(first and back and first.is_write and back.is_write)


def view_of(target: Any) -> bool:
    """Whether an operator's result shares its first argument's memory, and does not write it."""
    schema = _compat.schema_or_none(target)
    if schema is None or not schema.returns or not schema.arguments:
        return False
    first, back = schema.arguments[0].alias_info, schema.returns[0].alias_info
    return bool(first and back and not first.is_write)


@functools.cache
def without_out(target: Any) -> Any:
    """Return the overload that makes what an `out=` overload writes; None where there is none."""
    schema = _compat.schema_or_none(target)
    outs = [a.name for a in schema.arguments if a.is_out] if schema is not None else []
    if not outs:
        return None
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for name in target.overloadpacket.overloads():
        other = getattr(target.overloadpacket, name)
        if [(a.name, str(a.type)) for a in _compat.schema(other).arguments] == wanted:
            return other
    return None


def written_arguments(target: Any) -> list[str]:
    """Return the names of the arguments that an operator writes."""
    schema = _compat.schema_or_none(target)
    arguments = schema.arguments if schema is not None else []
    return [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
