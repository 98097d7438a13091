"""The walk behind `reach`: it follows names through functions, classes, containers and objects."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch

from lockstep.capture import parts
from lockstep.capture.mentions import looks_up, mentions_of
from lockstep.capture.reached import Cell, Reach, defaults_of
from lockstep.capture.sinks import told_names

_OF_FUNCTIONS = ["forward", "backward", "setup_context", "jvp", "vmap"]
_OPERATORS = {
    name for name in dir(torch.Tensor) if name.startswith("__") and name not in dir(object)
} | {"__call__", "__getattr__", "__getitem__", "__iter__", "__len__", "__contains__"}
_UNCALLED = {"__init__", "__new__", "__init_subclass__", "__repr__", "__str__", "extra_repr"}
_LIMIT = 5000  # of functions, classes and objects: a bound, far above any training script


@dataclass
class Walk:
    """One walk; `found` is what it has met so far."""

    found: Reach = field(default_factory=Reach)
    _todo: list[tuple[str, str, Any]] = field(default_factory=list)  # (label, name, value)
    _seen: dict[int, Any] = field(default_factory=dict)  # holds them: an id is used again else
    _waiting: dict[str, list[tuple[str, Any, Any]]] = field(default_factory=dict)
    _owners: list[tuple[str, Any]] = field(default_factory=list)  # whose attributes may be read
    _met: set[tuple[int, str]] = field(default_factory=set)

    def mention(self, names: Iterable[str], reads: Iterable[str] = ()) -> None:
        """Note names; the methods and class attributes that waited for them are reached."""
        self.found.reads.update(reads)
        for name in names:
            self.found.mentions.add(name)
            for label, holder, value in self._waiting.pop(name, ()):
                self.member(label, name, value, holder)

    def add(self, label: str, name: str, value: Any) -> None:
        """Walk a function, a class or an object later."""
        self._todo.append((label, name, value))

    def owner(self, label: str, owner: Any) -> None:
        """Walk the attributes of a module or an object, as far as the code in reach reads them."""
        self._owners.append((label, owner))

    def run(self) -> Reach:
        """Walk until nothing new is met."""
        before = -1
        while before != len(self._seen) + len(self._met):
            before = len(self._seen) + len(self._met)
            self._drain()
            for label, owner in list(self._owners):
                self._attributes(label, owner)
        if len(self._seen) >= _LIMIT:
            self.found.opaque.add(f"what comes after {_LIMIT} functions, classes and objects")
        return self.found

    def _drain(self) -> None:
        while self._todo and len(self._seen) < _LIMIT:
            label, name, value = self._todo.pop()
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            self._visit(label, name, value)

    def _visit(self, label: str, name: str, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self.mention(["__init__"] if name == value.__name__ else [])  # the code may make one
            if issubclass(value, torch.autograd.Function):
                self.mention(_OF_FUNCTIONS)  # autograd calls them, no code names them
            self._class(value)
        elif isinstance(value, ModuleType):
            self._module(value, None)
        elif isinstance(value, torch.nn.Module):
            self._held_module(label, value)
        else:
            for part in parts.behind(value):
                self.inside(label, part)
            if parts.is_object(value) and not isinstance(value, parts.WRAPPERS):
                self._object(label, value)

    # -- values

    def value(self, label: str, name: str, value: Any, mapping: Any) -> None:
        """A value that code reads by name: told in the fingerprint, and walked."""
        if isinstance(value, ModuleType):
            self.add(label, name, value)
            return
        if isinstance(value, torch.Tensor):
            return
        if isinstance(value, (*parts.CODE, *parts.WRAPPERS)) and mapping is not None:
            self.found.places.append((mapping, name, value))
        if not parts.says_nothing(label, name, value):
            self.found.values[label] = (value, mapping)
        self.inside(label, value, name)

    def inside(self, label: str, value: Any, name: str = "") -> None:
        """Walk a value and everything in it."""
        if isinstance(value, enum.Enum):
            value = type(value)
        if isinstance(value, (list, tuple, set, frozenset, dict)):
            if (id(value), "") in self._met:
                return
            self._met.add((id(value), ""))
            self._seen[id(value)] = value
            for at, item in parts.items_of(value):
                self.inside(f"{label}[{at}]", item)
            if type(value).__module__ == "builtins":
                return
            value = type(value)
        if isinstance(value, (*parts.CODE, *parts.WRAPPERS, torch.nn.Module)):
            self.add(label, name, value)
        elif parts.is_object(value):
            self.add(label, name, value)

    def _object(self, label: str, value: Any) -> None:
        self.found.objects[label] = value
        self.add(label, "", type(value))
        self.owner(label, value)

    def _held_module(self, label: str, module: torch.nn.Module) -> None:
        """A module that is none of the step's own: a layer in a global or in a list."""
        if id(module) in self.found.own:
            return
        for path, child in module.named_modules():
            self.add(f"{label}.{path}" if path else label, "", type(child))
            self.owner(f"{label}.{path}" if path else label, child)

    def _attributes(self, label: str, owner: Any) -> None:
        for key, value in self.found.readable(owner):
            if (id(owner), key) not in self._met:
                self._met.add((id(owner), key))
                if label in self.found.objects and hasattr(owner, "__dict__"):
                    self.found.places.append((vars(owner), key, value))
                self.inside(f"{label}.{key}", value)

    # -- code

    def _function(self, function: FunctionType) -> None:
        told = told_names(function)
        if not parts.is_users_function(function):
            self._library(function.__module__)
            if hasattr(function, "__wrapped__"):  # a decorator's: the user's code is inside
                self._closure(_label(function), function, told)
                self.inside(_label(function), function.__wrapped__)
            return
        label = same = _label(function)
        number = 1
        while label in self.found.functions:  # one line made several, with other closures
            number += 1
            label = f"{same}#{number}"
        self.found.functions[label] = function
        self._closure(label, function, told)
        for name, default in defaults_of(function).items():
            self.found.holders[f"{label}:{name}"] = function
            self.value(f"{label}:{name}", name, default, {name: default})
        said = mentions_of(function.__code__)
        names = [name for name in said.names if name not in told]
        if looks_up(function, said.names):
            self.found.everything = True
            names += [*self._waiting]
        self.mention(names, said.reads - told)
        for name in said.globals:
            if name in function.__globals__ and name not in told:
                value, module = function.__globals__[name], function.__globals__.get("__name__")
                if isinstance(value, ModuleType):
                    self._module(value, names)
                else:
                    self.value(f"{module}:{name}", name, value, function.__globals__)
        for module, level, imported in said.imports:
            self._import(function, module, level, imported, names)

    def _closure(self, label: str, function: FunctionType, told: frozenset[str]) -> None:
        cells: tuple[CellType, ...] = function.__closure__ or ()
        for name, cell in zip(function.__code__.co_freevars, cells, strict=False):
            held = Cell(cell)
            if held.filled and name not in told:
                self.found.places.append((held, name, held.get(name)))
                self.found.holders[f"{label}:{name}"] = held
                self.value(f"{label}:{name}", name, held.get(name), None)

    def _import(
        self,
        function: FunctionType,
        name: str,
        level: int,
        imported: tuple[str, ...],
        names: list[str],
    ) -> None:
        """An import that runs inside a function; only the user's own module is made for it."""
        package = function.__globals__.get("__package__") or ""
        try:
            full = importlib.util.resolve_name("." * level + name, package) if level else name
            top = importlib.util.find_spec(full.partition(".")[0])
            if top is None or not top.has_location or not parts.is_users(str(top.origin)):
                self._library(full)
                return
            module = importlib.import_module(full)
        except (ImportError, ValueError, AttributeError):
            return  # the code's own error, if it comes to it
        self._module(module, names)
        for one in imported:
            if one in vars(module):
                self.value(f"{full}:{one}", one, vars(module)[one], vars(module))

    def _module(self, module: ModuleType, names: list[str] | None) -> None:
        """What a module holds under names: those of the code beside it, or any if it is passed on.

        Of a library's these are functions that the user has put there.
        """
        users = parts.is_users_module(module.__name__)
        if not users:
            self._library(module.__name__)
        held = vars(module)
        for name in list(held) if names is None else [name for name in names if name in held]:
            value, label = held[name], f"{module.__name__}:{name}"
            patched = isinstance(value, FunctionType) and parts.is_users_function(value)
            if not users and not patched:
                continue
            if isinstance(value, ModuleType) and names is not None and value is not module:
                self._module(value, names)
            elif names is not None or name in self.found.mentions:
                self.value(label, name, value, held)
            else:
                self._waiting.setdefault(name, []).append((label, held, value))

    def _class(self, cls: type) -> None:
        """Methods and attributes when something mentions them; operators always."""
        chain = [f"{b.__module__}.{b.__qualname__}" for b in cls.__mro__ if b not in parts.BASES]
        if len(chain) > 1 and parts.is_users_module(cls.__module__):
            self.found.classes[chain[0]] = chain[1:]
        above: set[str] = set()  # what library code below the user's may call
        for base in reversed(cls.__mro__):
            users = parts.is_users_module(base.__module__)
            if not users:
                self._library(base.__module__)
                above |= set(vars(base)) if base not in parts.BASES[:1] else set()
            if users and issubclass(base, enum.Enum):
                members = {name: member.value for name, member in base.__members__.items()}
                self.found.values[f"{base.__module__}.{base.__qualname__}"] = (members, None)
            if users and hasattr(base, "_field_defaults"):
                defaults = getattr(base, "_field_defaults", {})
                told = {name: defaults.get(name) for name in getattr(base, "_fields", ())}
                self.found.values[f"{base.__module__}.{base.__qualname__}"] = (told, None)
            for name, value in list(vars(base).items()):
                patched = isinstance(value, FunctionType) and parts.is_users_function(value)
                if (users or patched) and not parts.is_generated(base, name, value):
                    self._member(base, name, value, name in above - _UNCALLED)
        if dataclasses.is_dataclass(cls) and parts.is_users_module(cls.__module__):
            for made in dataclasses.fields(cls):
                if made.default_factory is not dataclasses.MISSING:
                    label = f"{cls.__module__}.{cls.__qualname__}:{made.name}"
                    self._waiting.setdefault("__init__", []).append(
                        (label, None, made.default_factory)
                    )

    def _member(self, base: type, name: str, value: Any, called: bool) -> None:
        code = isinstance(value, (*parts.CODE, *parts.WRAPPERS)) or callable(value)
        own = issubclass(base, enum.Enum) and name.startswith("_")
        if own or isinstance(value, enum.Enum) or (name.startswith(("__", "_abc_")) and not code):
            return
        label = f"{base.__module__}.{base.__qualname__}:{name}"
        if called or name in self.found.mentions or name in _OPERATORS or self.found.everything:
            self.member(label, name, value, base)
        else:
            self._waiting.setdefault(name, []).append((label, base, value))

    def member(self, label: str, name: str, value: Any, holder: Any) -> None:
        """A member of a class or of a module that something mentions."""
        if not isinstance(holder, type):
            self.value(label, name, value, holder)
            return
        self.found.places.append((vars(holder), name, value))
        if parts.says_nothing(label, name, value):
            self.inside(label, value, name)
        else:
            self.found.holders[label] = holder
            self.value(label, name, value, None)

    def _library(self, module: str | None) -> None:
        if module:
            self.found.libraries.add(module.partition(".")[0])


def _label(function: FunctionType) -> str:
    """Where a function is defined, whatever a decorator calls it."""
    return f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}"
