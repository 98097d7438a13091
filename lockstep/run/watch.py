"""Python values that a step may read, and whether they are still what they were.

A program is made for the values that its capture read. Comparing them is part of every call, so
what cannot change in place is compared by identity first, and large containers by their length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from lockstep import _compat
from lockstep.capture.binding import WRITTEN

SCALAR = (bool, int, float, str, bytes, type(None))
CODE = (FunctionType, BuiltinFunctionType, MethodType, type, functools.partial)
_FIXED = (*SCALAR, *CODE, torch.dtype, torch.device)
_LONGEST = 64  # elements of a container that are looked at
_DEEPEST = 2

Place = tuple[Any, Any, Any]  # a mapping, a key in it, and the value found there


def snapshot(value: Any, depth: int = 0) -> Any:
    """A hashable picture of a value: equal as long as nothing that can be seen in it has changed.

    Scalars are pictured with their type, since 1, 1.0 and True are equal but are other programs;
    functions by their identity; a foreign object by its type alone.

    Example:
        >>> snapshot([1]) == snapshot([1]), snapshot([1]) == snapshot([1.0])
        (True, False)
    """
    kind = type(value)
    if isinstance(value, _FIXED):
        return kind, value
    if isinstance(value, WRITTEN):
        return kind, repr(value)
    if depth > _DEEPEST:
        return (kind,)
    if isinstance(value, dict):
        items = list(value.items())[:_LONGEST]
        return kind, len(value), tuple((_key(k), snapshot(v, depth + 1)) for k, v in items)
    if isinstance(value, (list, tuple)):
        return kind, len(value), tuple(snapshot(v, depth + 1) for v in value[:_LONGEST])
    if isinstance(value, (set, frozenset)):
        plain = all(isinstance(v, _FIXED) for v in value) and len(value) <= _LONGEST
        return kind, len(value), frozenset(value) if plain else None
    if hasattr(kind, "__dataclass_fields__") and hasattr(value, "__dict__"):
        return kind, tuple((k, snapshot(v, depth + 1)) for k, v in vars(value).items())
    return (kind,)


def _cannot_change(value: Any) -> bool:
    """Whether a value that is still the same object is still the same value."""
    if isinstance(value, _FIXED):
        return True
    if isinstance(value, tuple):
        return all(map(_cannot_change, value))
    made = getattr(type(value), "__dataclass_params__", None)
    return made is not None and made.frozen and all(map(_cannot_change, vars(value).values()))


def _key(key: Any) -> Any:
    return key if isinstance(key, _FIXED) else type(key)


class Watch:
    """Values and hooks as they are now.

    Args:
        places: the values to watch, by the mapping that holds each.
        modules, parameters: whose hooks are part of the step.
    """

    def __init__(
        self,
        places: Iterable[Place],
        modules: list[torch.nn.Module],
        parameters: list[torch.Tensor],
    ) -> None:
        self._fixed: list[Place] = []
        self._changing: list[Place] = []
        pictures = []
        for mapping, key, value in places:
            picture = snapshot(value)
            pictures.append(picture)
            if _cannot_change(value):
                self._fixed.append((mapping, key, value))
            elif len(picture) > 1:
                self._changing.append((mapping, key, picture))
        self._tables = [(t, tuple(t.values())) for m in modules for t in _compat.hook_tables(m)]
        self._parameters = parameters
        self._hooks = list(_hooks(parameters))
        self.signature = (
            tuple(pictures),
            tuple(hooks for _, hooks in self._tables if hooks),
            tuple(self._hooks),
        )

    def holds(self) -> bool:
        """Whether everything is still as it was."""
        for mapping, key, value in self._fixed:
            now = mapping.get(key)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        for table, hooks in self._tables:
            if (table or hooks) and tuple(table.values()) != hooks:
                return False
        for mapping, key, picture in self._changing:
            if snapshot(mapping.get(key)) != picture:
                return False
        return list(_hooks(self._parameters)) == self._hooks


def _hooks(parameters: list[torch.Tensor]) -> Iterator[tuple[int, Any]]:
    """The hooks of those parameters that have some, by their place."""
    for at, parameter in enumerate(parameters):
        hooks = _compat.all_tensor_hooks(parameter)
        if hooks:
            yield at, hooks
