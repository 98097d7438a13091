"""What a step reaches: code, values, libraries, and what the walk could not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, FunctionType
from typing import Any

import torch

from lockstep.capture.parts import attributes_of, is_closed, is_walked

# What torch itself keeps in every module and every optimizer.
_TORCHS = frozenset({*vars(torch.nn.Module()), "defaults", "state", "param_groups"})


@dataclass
class Reach:
    """What a step reaches.

    `functions` are user code by qualified name, `classes` the bases of the user's, and `mentions`
    all names in their code, `reads` those that are read and not just called; `values` are the
    values in globals, closures and classes by "module:name", with the mapping that holds each
    (None for a closure or a class); `objects` are those in them or behind them by where they were
    met; `own` the ids of the step's own modules; `libraries` are top-level package names; `opaque`
    is what the walk cannot read; `places` are where else a value or a function was read: what has a
    `get`, the name in it, and what it held; `holders` are what holds those values that no mapping
    holds: a closure's cell, a class, a function with a default. `everything`: names are looked up
    as the code runs, so that any attribute may be read.
    """

    functions: dict[str, FunctionType] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=dict)
    mentions: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    everything: bool = False
    values: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    objects: dict[str, Any] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)
    told: set[int] = field(default_factory=set)  # ids of arguments that are only told something
    places: list[tuple[Any, str, Any]] = field(default_factory=list)
    holders: dict[str, Any] = field(default_factory=dict)

    def readable(self, owner: Any) -> Iterator[tuple[str, Any]]:
        """The attributes of an object that the code in reach may read, tensors left out.

        Of a class that is all user code these are the mentioned ones; library code may read any.
        """
        if id(owner) in self.told or is_closed(owner):
            return
        for key, value in attributes_of(owner).items():
            if key in _TORCHS or isinstance(value, (torch.Tensor, torch.nn.Module)):
                continue
            if self._read(key, value) or (_is_public(owner, key, value) and self._any(owner)):
                yield key, value

    def _read(self, key: str, value: Any) -> bool:
        return key in self.reads or (callable(value) and key in self.mentions)

    def _any(self, owner: Any) -> bool:
        """Whether code that was not walked may read an object, under names that are not known."""
        if isinstance(owner, torch.Tensor):  # what a library marks its parameters by is apart
            return False
        return self.everything or not is_walked(owner)


def _is_public(owner: Any, key: str, value: Any) -> bool:
    """Whether a library may read an attribute, and it is no bookkeeping that changes by itself."""
    if not key.startswith("_"):
        return True
    return isinstance(value, (bool, str)) and not isinstance(owner, torch.optim.Optimizer)


class Cell:
    """A closure's cell, read as a dictionary is."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    @property
    def filled(self) -> bool:
        """Whether it holds anything yet."""
        try:
            return self._cell.cell_contents is not self
        except ValueError:
            return False

    def get(self, _name: str) -> Any:
        """What it holds; None where it is empty."""
        return self._cell.cell_contents if self.filled else None

    def put(self, value: Any) -> None:
        """Let it hold another value."""
        self._cell.cell_contents = value


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters: made once, and kept between calls."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}
