"""Python values that a step may read, and whether they are still what they were.

A program is made for the values that its capture read. Comparing them is part of every call, so
identity is compared first, of a value and of what the containers in it hold. Only where another
object was put in a place are the two looked at, and that place from then on at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from lockstep import _compat
from lockstep.capture.binding import WRITTEN
from lockstep.run.same import Place, Same

SCALAR = (bool, int, float, str, bytes, type(None))
CODE = (FunctionType, BuiltinFunctionType, MethodType, type, functools.partial)
_FIXED = (*SCALAR, *CODE, torch.dtype, torch.device)
_LONGEST = 64  # elements of a container that are looked at
_DEEPEST = 2


def snapshot(value: Any, depth: int = 0, met: list[Any] | None = None) -> Any:
    """A hashable picture of a value: equal as long as nothing that can be seen in it has changed.

    Scalars are pictured with their type, since 1, 1.0 and True are equal but are other programs;
    functions by their identity; a foreign object by its type alone.

    Args:
        met: the containers that were looked into are added to it.

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
        _note(met, value)
        some = list(value.items())[:_LONGEST]
        return kind, len(value), tuple((_key(k), snapshot(v, depth + 1, met)) for k, v in some)
    if isinstance(value, (list, tuple)):
        _note(met, value)
        return kind, len(value), tuple(snapshot(v, depth + 1, met) for v in value[:_LONGEST])
    if isinstance(value, (set, frozenset)):
        _note(met, value)
        plain = all(isinstance(v, _FIXED) for v in value) and len(value) <= _LONGEST
        return kind, len(value), frozenset(value) if plain else None
    if hasattr(kind, "__dataclass_fields__"):
        held = _fields(value)
        # What lies in slots is in no container that could be compared: it is looked at each time.
        _note(met, held if hasattr(value, "__dict__") else range(_LONGEST + 1))
        return kind, tuple((k, snapshot(v, depth + 1, met)) for k, v in held.items())
    return (kind,)


def _note(met: list[Any] | None, container: Any) -> None:
    if met is not None:
        met.append(container)


def _cannot_change(value: Any) -> bool:
    """Whether a value that is still the same object is still the same value."""
    if isinstance(value, _FIXED):
        return True
    if isinstance(value, tuple):
        return all(map(_cannot_change, value))
    made = getattr(type(value), "__dataclass_params__", None)
    return made is not None and made.frozen and all(map(_cannot_change, _fields(value).values()))


def _fields(value: Any) -> dict[str, Any]:
    """What a dataclass holds: its own dictionary where it has one."""
    if hasattr(value, "__dict__"):
        return vars(value)
    return {name: getattr(value, name, None) for name in type(value).__dataclass_fields__}


def _key(key: Any) -> Any:
    return key if isinstance(key, _FIXED) else type(key)


class _Watched:
    """One place: its value, its picture, and the containers that this was read from."""

    def __init__(self, place: Place) -> None:
        met: list[Any] = []
        self.place, value = place, place[2]
        self.picture, self.fixed = snapshot(value, 0, met), _cannot_change(value)
        # Of a foreign object only the type is pictured: there is nothing to see.
        self.seen = self.fixed or len(self.picture) > 1
        self.long = not self.fixed and any(len(container) > _LONGEST for container in met)
        self.inside = [] if self.fixed else met
        self._items = Same(inside=_views(met)) if self.inside and not self.long else None

    def is_same(self) -> bool:
        """Whether the place holds the very object, and that the very items."""
        mapping, key, value = self.place
        return mapping.get(key) is value and (self._items is None or self._items.holds())

    def is_equal(self) -> bool:
        """Whether it looks the same."""
        mapping, key, value = self.place
        now = mapping.get(key)
        if snapshot(now) != self.picture:
            return False
        return not self.fixed or now is value or bool(now == value)


def _views(containers: Iterable[Any]) -> Iterator[Collection[Any]]:
    for one in containers:
        yield from (one.keys(), one.values()) if isinstance(one, dict) else (one,)


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
        watched = [_Watched(place) for place in places]
        self._quiet = [one for one in watched if one.seen and not one.long]
        self._moving = [one for one in watched if one.seen and one.long]
        self._values = _same(self._quiet)
        self._hooks = _Hooks(modules, parameters)
        self.signature = (tuple([one.picture for one in watched]), self._hooks.found)

    def holds(self) -> bool:
        """Whether everything is still as it was."""
        if not self._hooks.holds() or not (self._values.holds() or self._equal()):
            return False
        return all(one.is_equal() for one in self._moving)

    def _equal(self) -> bool:
        """Whether what is not the same is equal; it is looked at each time from now on."""
        moved = [one for one in self._quiet if not one.is_same()]
        if not all(one.is_equal() for one in moved):
            return False
        self._moving += moved
        self._quiet = [one for one in self._quiet if one not in moved]
        self._values = _same(self._quiet)
        return True


def _same(watched: list[_Watched]) -> Same:
    containers = {id(container): container for one in watched for container in one.inside}
    return Same([one.place for one in watched], _views(containers.values()))


class _Hooks:
    """The hooks of modules, of parameters, and of every module there is.

    Each hook that is added, anywhere, takes a number: as long as no number was taken, only those
    that were there have to be looked at.
    """

    def __init__(self, modules: list[torch.nn.Module], parameters: list[torch.Tensor]) -> None:
        self._modules, self._parameters = modules, parameters
        self.found = self._look()

    def holds(self) -> bool:
        """Whether they are what they were."""
        if self._taken == RemovableHandle.next_id and self._there.holds():
            return True
        return self._look() == self.found

    def _look(self) -> tuple[Any, ...]:
        """Those of each module and parameter that has some, by its place."""
        self._taken = RemovableHandle.next_id
        own = [_compat.own_hook_tables(parameter) for parameter in self._parameters]
        every = [*map(_compat.hook_tables, self._modules), _compat.global_module_hooks()]
        tables = [
            (at, number, table)
            for at, some in enumerate([*own, *every])
            for number, table in enumerate(some)
            if table
        ]
        self._there = Same(inside=[table.values() for _, _, table in tables])
        return tuple([(at, number, *table.values()) for at, number, table in tables])
