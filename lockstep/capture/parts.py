"""What a Python value is made of, for a walk: its items, its attributes, the code behind it."""

from __future__ import annotations

import argparse
import enum
import functools
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Generic, Protocol

import torch

from lockstep.capture.origin import is_user_file

_SITE = os.sep + "site-packages" + os.sep
BASES = (object, torch.nn.Module, Generic, Protocol)
_HOLDERS = (SimpleNamespace, argparse.Namespace)  # of Python's own, which read nothing themselves
_SCALARS = (int, float, complex, str, bytes, type(None))
_MOST = 10_000  # items of one container


def is_users(filename: str) -> bool:
    """Source that changes with the user's project: no installed packages, not Python or torch."""
    return is_user_file(filename) and _SITE not in filename


def is_users_function(function: FunctionType) -> bool:
    """Whether a function is the user's; one that was made from a text belongs to its module."""
    file = function.__code__.co_filename
    if not file.startswith("<"):
        return is_users(file)
    module = str(function.__globals__.get("__name__"))
    return module == "__main__" or is_users_module(module)


def is_users_module(name: str) -> bool:
    """Whether the module of this name is the user's."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:  # of a notebook
        return name == "__main__"
    return is_users(file)


def is_walked(owner: Any) -> bool:
    """Whether all code that reads an object's attributes by itself is the user's."""
    kind: Any = type(owner)
    return isinstance(owner, _HOLDERS) or _is_users_class(kind)


@functools.lru_cache(maxsize=4096)
def _is_users_class(kind: Any) -> bool:
    bases = [b for b in kind.__mro__ if b not in BASES and not _only_wraps(b)]
    return all(is_users_module(b.__module__) for b in bases)


def _only_wraps(base: type) -> bool:
    """Whether a class is what `fully_shard` puts before a model's own, and reads none of it."""
    return f"{base.__module__}.".startswith("torch.distributed.fsdp.")


def attributes_of(owner: Any) -> dict[str, Any]:
    """An object's own attributes, in its dictionary or in slots; a tensor's and a class' are none.

    Example:
        >>> attributes_of(SimpleNamespace(scale=2.0))
        {'scale': 2.0}
    """
    found = dict(getattr(owner, "__dict__", {}))
    kind: Any = type(owner)
    for name in _slots_of(kind):
        if hasattr(owner, name):
            found.setdefault(name, getattr(owner, name))
    return found


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: Any) -> tuple[str, ...]:
    """The names of the slots that a class and its bases have."""
    named = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    slots = [name for one in named for name in ((one,) if isinstance(one, str) else one)]
    return tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


def is_closed(value: Any) -> bool:
    """Whether an object's attributes do not say what it is: a C object, Python's own, or torch's.

    Example:
        >>> is_closed(SimpleNamespace()), is_closed(object()), is_closed(torch.Generator())
        (False, True, True)
    """
    if isinstance(value, (type, torch.nn.Module, torch.optim.Optimizer, torch.Tensor, *_HOLDERS)):
        return False
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return False
    known = kind.__module__.partition(".")[0]
    own = known in sys.stdlib_module_names - {"__main__"} or known == "torch"
    return own or not (hasattr(value, "__dict__") or attributes_of(value))


def is_object(value: Any) -> bool:
    """Whether a value is told by its attributes: no number, container, code, tensor or module."""
    return not isinstance(
        value,
        (*_SCALARS, list, dict, set, frozenset, tuple, type, FunctionType, MethodType, ModuleType,
         BuiltinMethodType, functools.partial, enum.Enum, torch.Tensor, torch.nn.Module,
         torch.optim.Optimizer, torch.dtype, torch.device, torch.layout, torch.memory_format),
    )  # fmt: skip


def items_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a container that are no plain scalars, each with its place in it."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in list(value.items())[:_MOST]]
    elif isinstance(value, (list, tuple)):
        items = [(str(i), item) for i, item in enumerate(value[:_MOST])]
    elif isinstance(value, (set, frozenset)):
        found = [v for v in value if not isinstance(v, _SCALARS)]
        items = [("", v) for v in sorted(found, key=lambda v: getattr(v, "__qualname__", ""))]
    else:
        return
    yield from ((at, item) for at, item in items if not isinstance(item, _SCALARS))


def behind(value: Any) -> list[Any]:
    """What a wrapper of code wraps: the function of a method, a property or a partial, and more.

    Example:
        >>> behind(functools.partial(max, 1, key=abs)) == [max, 1, abs]
        True
    """
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        own = [value.__self__] if isinstance(value, MethodType) else []
        return [value.__func__, *own]
    if isinstance(value, property):
        return [part for part in (value.fget, value.fset, value.fdel) if part is not None]
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, functools.singledispatchmethod):
        return [value.func, value.dispatcher]
    if isinstance(value, BuiltinMethodType) and not isinstance(value.__self__, ModuleType | None):
        return [value.__self__]  # `apply` of an autograd Function, a bound method of C
    wrapped = getattr(value, "__wrapped__", None) if callable(value) else None
    return [] if wrapped is None or isinstance(value, FunctionType | type) else [wrapped]


def says_nothing(label: str, name: str, value: Any) -> bool:
    """Whether a name holds no more than the function or class that was defined under it there.

    Example:
        >>> says_nothing(f"{__name__}:behind", "behind", behind)
        True
    """
    if name == "__class__" or getattr(value, "__module__", None) == "typing":
        return True
    if not isinstance(value, (FunctionType, type)):
        code = behind(value) if isinstance(value, WRAPPERS) or is_closed(value) else []
        return bool(code) and all(says_nothing(label, name, part) for part in code)
    module, _, name = label.rpartition(":")
    return f"{value.__module__}.{value.__qualname__}" == f"{module}.{name}"


def is_generated(owner: type, name: str, value: Any) -> bool:
    """Whether a class has this member by being a dataclass or a named tuple."""
    if hasattr(owner, "_field_defaults"):
        made = ("__new__", "__repr__", "__getnewargs__", "_make", "_replace", "_asdict", "_fields")
        return name in (*made, "_field_defaults") or type(value).__name__ == "_tuplegetter"
    inner = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    return inner is not None and "__create_fn__" in inner.__code__.co_qualname


CODE: tuple[type, ...] = (FunctionType, MethodType, BuiltinMethodType, type, functools.partial)
WRAPPERS: tuple[type, ...] = (
    staticmethod, classmethod, property, functools.partialmethod, functools.cached_property,
    functools.singledispatchmethod,
)  # fmt: skip
