"""Ints that were read of the rank before the step: a capture meets the formula in their place.

`self.start = rank * 4` in a constructor is 4 here and 8 elsewhere. While the step is captured, the
attribute holds `4 * tp` as a number of the trace, as if the step had read its rank itself; what
Python asks of it is answered or refused in the same way. Afterwards the attribute is as it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.distributed as dist

from lockstep.capture.binding import Call
from lockstep.capture.coordinates import Coordinates
from lockstep.capture.parts import attributes_of
from lockstep.capture.reach import Cell, Reach, defaults_of
from lockstep.capture.state import State
from lockstep.errors import CaptureError
from lockstep.spmd.affine import Affine
from lockstep.spmd.mesh import WORLD
from lockstep.spmd.mesh import axis as axis_named


@dataclass(frozen=True)
class Early:
    """One int, and the formula that takes its place.

    Args:
        name: "model.start".
        holder: a mapping, a cell, a class, a function with defaults, or the call's leaves.
        keys: of the entry in it, then of what is inside.
    """

    name: str
    formula: Affine
    holder: Any
    keys: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name} = {self.formula}"

    def number(self, coordinates: Coordinates) -> Any:
        """The formula as a number of the trace."""
        made: Any = None
        for axis, by in self.formula.per.items():
            size = dist.get_world_size() if axis == WORLD else axis_named(axis).size
            part = coordinates.read(axis, size) * by
            made = part if made is None else made + part
        return made + self.formula.first


def located(path: Sequence[Any], formula: Affine, call: Call, state: State, found: Reach) -> Early:
    """Find the place of a number that a fingerprint tells.

    Args:
        path: the fingerprint's field, then keys and places in it.

    Raises:
        CaptureError: nothing can be put there for a while, or it is no plain int.
    """
    field, *keys = path
    kind, _, name = field.partition(" ")
    shown = name + "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in keys)
    holder, keys = _holder(kind, name, keys, call, state, found)
    value = _inside(_entry(holder, keys[0]), keys[1:]) if holder is not None else None
    if type(value) is not int:
        raise CaptureError(
            f"{shown} was read of the rank before the step, and cannot be followed",
            got=f"a {type(value).__name__}, which is {formula} on each rank",
            want="an int in an attribute, a list, a tuple, a dictionary, a closure or a global",
            fix="read the rank inside the step: dist.get_rank(), mesh.get_local_rank(axis)",
        )
    return Early(shown, formula, holder, tuple(keys))


@contextlib.contextmanager
def putting(early: Sequence[Early], number: Callable[[Early], Any]) -> Iterator[dict[int, Any]]:
    """Let every place hold another number while inside, and its int again afterwards.

    A place that the step itself wrote to is left, for the comparison of Python's state.

    Args:
        number: gives the number of one place.

    Yields:
        The arguments that are other ones now, by their place among the leaves.
    """
    arguments: dict[int, Any] = {}
    with contextlib.ExitStack() as undo:
        for one in early:
            first, *rest = one.keys
            old = arguments.get(first) if isinstance(one.holder, _Leaves) else None
            old = _entry(one.holder, first) if old is None else old
            new = _with(old, rest, number(one), undo)
            if isinstance(one.holder, _Leaves):
                arguments[first] = new
            else:
                _change(one.holder, first, old, new, undo)
        yield arguments


# ---- places


def _holder(
    kind: str, name: str, keys: list[Any], call: Call, state: State, found: Reach
) -> tuple[Any, list[Any]]:
    """What holds the outermost value, and its key there; None where nothing does."""
    if kind in ("module", "object"):
        owner = dict(state.modules).get(name) if kind == "module" else call.objects.get(name)
        return (_Attributes(owner), keys) if keys[0] in attributes_of(owner) else (None, keys)
    if kind == "contract":
        known = name in call.names
        return (_Leaves(call.leaves), [call.names.index(name), *keys]) if known else (None, keys)
    key = name.rpartition(":")[2]
    mapping = found.values[name][1] if name in found.values else None
    return found.holders.get(name, mapping), [key, *keys]


def _entry(holder: Any, key: Any) -> Any:
    if isinstance(holder, FunctionType):
        return defaults_of(holder)[key]
    return vars(holder)[key] if isinstance(holder, type) else holder.get(key)


def _write(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, FunctionType):
        _write_default(holder, key, value)
    elif isinstance(holder, type):
        setattr(holder, key, value)
    elif isinstance(holder, Cell):
        holder.put(value)
    else:
        holder[key] = value


def _change(holder: Any, key: Any, old: Any, new: Any, undo: contextlib.ExitStack) -> None:
    if new is old:  # changed inside
        return
    undo.callback(lambda: _write(holder, key, old) if _entry(holder, key) is new else None)
    _write(holder, key, new)


def _write_default(function: FunctionType, name: str, value: Any) -> None:
    named = function.__kwdefaults__ or {}
    if name in named:
        function.__kwdefaults__ = {**named, name: value}
        return
    positional = {k: v for k, v in defaults_of(function).items() if k not in named}
    function.__defaults__ = tuple({**positional, name: value}.values())


class _Attributes:
    """An object's attributes, in its dictionary or in slots; a frozen one's too."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def get(self, key: str) -> Any:
        return attributes_of(self._owner).get(key)

    def __setitem__(self, key: str, value: Any) -> None:
        own = getattr(self._owner, "__dict__", {})
        if key in own:
            own[key] = value
        else:
            object.__setattr__(self._owner, key, value)


class _Leaves:
    """The leaves of a call's arguments."""

    def __init__(self, leaves: list[Any]) -> None:
        self._leaves = leaves

    def get(self, at: int) -> Any:
        return self._leaves[at]


class _Items:
    """A list or a dictionary, read and written alike."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def get(self, key: Any) -> Any:
        return self._container[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._container[key] = value


# ---- inside values, by keys as `lockstep.build.values` tells them


def _inside(value: Any, keys: Sequence[Any]) -> Any:
    """What lies at keys; None where there is nothing, or nothing that can be replaced."""
    for key in keys:
        value = _part(value, key)
    return value


def _part(value: Any, key: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return value[key]
    if isinstance(value, slice):
        return getattr(value, key)
    if isinstance(value, Mapping):
        return value.get(_key(value, key))
    if isinstance(value, partial):
        return {2: value.args, 3: value.keywords}.get(key)
    if isinstance(value, MethodType):
        return value.__self__ if key == "of" else None
    children = dict(value.named_children()) if isinstance(value, torch.nn.Module) else {}
    return children.get(key, attributes_of(value).get(key))


def _with(value: Any, keys: Sequence[Any], number: Any, undo: contextlib.ExitStack) -> Any:
    """The value with a number in it: the same object where it can be changed, else a new one."""
    if not keys:
        return number
    key, *rest = keys
    old = _part(value, key)
    new = _with(old, rest, number, undo)
    if new is old:  # changed inside
        return value
    if isinstance(value, slice):
        return slice(*[new if key == n else getattr(value, n) for n in ("start", "stop", "step")])
    if isinstance(value, tuple):
        items = [*value[:key], new, *value[key + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, partial):
        return type(value)(value.func, *new, **value.keywords)
    holder = _Items(value) if isinstance(value, (list, dict)) else _Attributes(value)
    _change(holder, _key(value, key), old, new, undo)
    return value


def _key(value: Any, shown: Any) -> Any:
    """A dictionary's own key: a fingerprint shows its text."""
    if isinstance(value, Mapping):
        return next((key for key in value if str(key) == shown), shown)
    return shown
