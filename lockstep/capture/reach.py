"""The code and the Python values that a step can reach, found without running it.

The walk follows names: from the step to the functions, classes and values that it mentions, and on
from those. Of a class of an argument the methods whose names are mentioned are reached, so that a
trainer's other loops do not count. Libraries are not walked; they are named, for their versions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinMethodType, CellType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, Protocol

import torch

from lockstep import _compat
from lockstep.capture.binding import CODE, Call, Step, globals_in, names_in
from lockstep.capture.origin import is_user_file
from lockstep.capture.sinks import told_names
from lockstep.capture.state import State

_SITE = os.sep + "site-packages" + os.sep
_PLAIN = (int, float, complex, str, bytes, type(None), list, dict, set, tuple)
_BASES = (object, torch.nn.Module, Generic, Protocol)
_TORCHS = ("training", "_parameters", "_buffers", "_modules")
_OF_FUNCTIONS = ["forward", "backward", "setup_context", "jvp", "vmap"]
_OPERATORS = {
    name for name in dir(torch.Tensor) if name.startswith("__") and name not in dir(object)
} | {"__call__", "__getattr__"}
_LIMIT = 5000  # of functions and classes: a bound on the walk, far above any training script


@dataclass
class Reach:
    """What a step reaches.

    `functions` are user code by qualified name, and `mentions` all names in it; `values` are the
    plain values in globals, closures and classes by "module:name", with the mapping that holds each
    (None for a closure or a class); `libraries` are top-level package names; `opaque` are objects
    that the walk cannot read; `places` are where else a value or a function was read: what has a
    `get`, the name in it, and what it held; `holders` are what holds those values that no mapping
    holds: a closure's cell, a class, a function with a default.
    """

    functions: dict[str, FunctionType] = field(default_factory=dict)
    mentions: set[str] = field(default_factory=set)
    values: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    libraries: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)
    told: set[int] = field(default_factory=set)  # ids of arguments that are only told something
    places: list[tuple[Any, str, Any]] = field(default_factory=list)
    holders: dict[str, Any] = field(default_factory=dict)

    def readable(self, owner: Any) -> Iterator[tuple[str, Any]]:
        """The attributes of an object that the code in reach may read, tensors left out.

        Of a class that is all user code these are the mentioned ones; library code may read any.
        """
        if id(owner) in self.told:
            return
        walked = all(_is_users_class(base) for base in type(owner).__mro__ if base not in _BASES)
        for key, value in list(vars(owner).items()):
            if isinstance(value, (torch.Tensor, torch.nn.Module)) or key in _TORCHS:
                continue
            if key in self.mentions if walked else not key.startswith("_"):
                yield key, value


def reach(step: Step, call: Call, state: State) -> Reach:
    """Walk from a step and everything in its call."""
    walk, told = _Walk(), told_names(step.plain)
    walk.add(step.name, step.function)
    walk.mention(["forward"])
    for name, module in state.modules:
        walk.add(name, type(module))
        for key, value in module.__dict__.items():  # `forward` itself may be one of them
            if isinstance(value, (FunctionType, MethodType, partial)):
                walk.add(f"{name}.{key}", value)
        for hook in [hook for table in _compat.hook_tables(module) for hook in table.values()]:
            walk.value(f"{name}:hook", "hook", hook, None)
    for slot in state.parameters:
        for hook in _compat.all_tensor_hooks(slot.tensor):
            walk.value(f"{slot.name}:hook", "hook", hook, None)
    for name, obj in call.objects.items():
        if name in told:
            walk.found.told.add(id(obj))
        else:
            walk.add(name, type(obj))
    for name, leaf in zip(call.names, call.leaves, strict=True):
        if isinstance(leaf, CODE) and name not in told:
            walk.value(f"{name}:argument", "argument", leaf, None)
    for _, optimizer in state.optimizers:
        walk.add("optimizer", type(optimizer))
    return walk.run()


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


class _Walk:
    def __init__(self) -> None:
        self.found = Reach()
        self._todo: list[tuple[str, Any]] = []
        self._seen: set[int] = set()
        self._waiting: dict[str, list[FunctionType]] = {}  # methods that nothing has mentioned yet

    def mention(self, names: list[str]) -> None:
        for name in names:
            self.found.mentions.add(name)
            self._todo += [(name, method) for method in self._waiting.pop(name, ())]

    def add(self, name: str, value: Any) -> None:
        self._todo.append((name, value))

    def run(self) -> Reach:
        while self._todo and len(self._seen) < _LIMIT:
            name, value = self._todo.pop()
            if id(value) in self._seen:
                continue
            self._seen.add(id(value))
            self._visit(name, value)
        return self.found

    def _visit(self, name: str, value: Any) -> None:
        if isinstance(value, partial):
            value = value.func
        if isinstance(value, MethodType):
            value = value.__func__
        value = _behind_apply(getattr(value, "__wrapped__", value))
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self.mention(["__init__"] if name == value.__name__ else [])  # the code may make one
            if issubclass(value, torch.autograd.Function):
                self.mention(_OF_FUNCTIONS)  # autograd calls them, no code names them
            self._class(value)

    def _function(self, function: FunctionType) -> None:
        if not _is_users(function.__code__.co_filename):
            self._library(function.__module__)
            return
        label = same = f"{function.__module__}.{function.__qualname__}"
        number = 1
        while label in self.found.functions:  # one line made several, with other closures
            if self.found.functions[label] is function:
                return
            number += 1
            label = f"{same}#{number}"
        self.found.functions[label] = function
        told = told_names(function)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=False
        ):
            held = Cell(cell)
            if held.filled and name not in told:
                self.found.places.append((held, name, held.get(name)))
                self.found.holders[f"{label}:{name}"] = held
                self.value(f"{label}:{name}", name, held.get(name), None)
        for name, default in defaults_of(function).items():
            self.found.holders[f"{label}:{name}"] = function
            self.value(f"{label}:{name}", name, default, {name: default})
        names = [name for name in names_in(function.__code__) if name not in told]
        self.mention(names)
        for name in globals_in(function.__code__):
            if name in function.__globals__ and name not in told:
                value = function.__globals__[name]
                self.value(f"{function.__module__}:{name}", name, value, function.__globals__)
                if isinstance(value, ModuleType):
                    self._through_module(value, names)

    def _through_module(self, module: ModuleType, names: list[str]) -> None:
        """`helpers.scale(...)`: what a user's module holds under the names that code mentions."""
        file = getattr(module, "__file__", None)
        if file is None or not _is_users(file):
            self._library(module.__name__)
            return
        for name in names:
            if name in vars(module):
                self.value(f"{module.__name__}:{name}", name, vars(module)[name], vars(module))

    def _class(self, cls: type) -> None:
        """Class attributes at once; methods when something mentions them, operators always."""
        for base in cls.__mro__:
            module = sys.modules.get(base.__module__)
            file = getattr(module, "__file__", None)
            if file is None or not _is_users(file):
                self._library(base.__module__)
                continue
            label = f"{base.__module__}.{base.__qualname__}"
            for name, value in vars(base).items():
                inner = getattr(value, "__func__", getattr(value, "fget", value))
                inner = getattr(inner, "__wrapped__", inner)
                if isinstance(inner, FunctionType):
                    self.found.places.append((vars(base), name, value))
                    if name in self.found.mentions or name in _OPERATORS:
                        self.add(name, inner)
                    else:
                        self._waiting.setdefault(name, []).append(inner)
                elif isinstance(value, _PLAIN) and not name.startswith("__"):
                    self.found.places.append((vars(base), name, value))
                    self.found.holders[f"{label}:{name}"] = base
                    self.found.values[f"{label}:{name}"] = (value, None)

    def value(self, label: str, name: str, value: Any, mapping: Any) -> None:
        value = _behind_apply(value)
        if isinstance(value, (FunctionType, MethodType, type, partial)):
            if mapping is not None:
                self.found.places.append((mapping, name, value))
            self.add(name, value)
        elif isinstance(value, _PLAIN):
            self.found.values[label] = (value, mapping)
        elif isinstance(value, (ModuleType, torch.nn.Module, torch.Tensor, torch.optim.Optimizer)):
            return
        elif callable(value) and hasattr(value, "__wrapped__"):
            self.add(name, value)
        else:
            self.found.opaque.add(f"{label}: {type(value).__module__}.{type(value).__qualname__}")

    def _library(self, module: str | None) -> None:
        if module:
            self.found.libraries.add(module.partition(".")[0])


def _is_users_class(cls: type) -> bool:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file is not None and _is_users(file)


def _behind_apply(value: Any) -> Any:
    """The autograd Function whose `apply` this is: a C method, which says nothing by itself."""
    owner = getattr(value, "__self__", None) if isinstance(value, BuiltinMethodType) else None
    return owner if isinstance(owner, type) else value


def defaults_of(function: FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters: made once, and kept between calls."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount][code.co_argcount - len(values) :]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}


def _is_users(filename: str) -> bool:
    """Source that changes with the user's project: no installed packages, not Python or torch."""
    return is_user_file(filename) and _SITE not in filename
