"""The name of a function or an object by which every process finds its own: never a pickle.

Either a module's attribute, "package.module:Class.method", or a path that begins at something the
step reaches by name: an argument, its `self`, a global, a name that it closes over.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from lockstep.capture.binding import Call, Step, globals_in
from lockstep.errors import CaptureError, ContractError

_MISSING = object()


def name_of(
    step: Step, call: Call, thing: Any, where: str, functions: Iterable[Any] = ()
) -> list[Any]:
    """Return the name of a function, a method or an object as JSON values.

    Args:
        where: the user's line that an error names.
        functions: whose globals may name it too.

    Raises:
        CaptureError: there is none.
    """
    owner = getattr(thing, "__self__", None)
    module, qualified = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module and _attribute(module, qualified) is thing:
        return ["module", module, qualified]
    path = _path_of(step, call, thing, functions)
    if path is None and owner is not None and not isinstance(owner, type(sys)):
        path = _path_of(step, call, owner, functions)
        path = None if path is None else member(path, thing.__name__)
    if path is None:
        raise CaptureError(
            "what the step calls on one rank has no name that another process would find",
            where=where,
            got=qualified or f"a {type(thing).__name__}",
            why="an artifact holds a name, and no Python objects",
            fix=[
                "define the function at the top of a module",
                "give a method of an argument of the step, or of an object that its code names",
            ],
        )
    return path


def member(name: list[Any], attribute: str) -> list[Any]:
    """Return the name of an attribute of what a name stands for."""
    if name[0] == "module":
        return [*name[:2], f"{name[2]}.{attribute}"]
    return [*name, attribute]


def objects_of(step: Step, call: Call, functions: Iterable[Any]) -> Iterator[Any]:
    """Every object that a name of the step's own may stand for."""
    for _, root in [*_roots(step, call), *_globals(functions)]:
        yield root
        if not isinstance(root, (ModuleType, type, FunctionType)):
            for _, holder in _below(root):
                yield from getattr(holder, "__dict__", {}).values()


def found_by(name: list[Any], step: Step, call: Call) -> Any:
    """Return what a name stands for in this process.

    Raises:
        ContractError: there is nothing.
    """
    kind, first, *rest = name
    if kind == "module":
        found = _attribute(first, rest[0])
        if found is not _MISSING:
            return found
    else:
        found = dict(_roots(step, call)).get(first, _MISSING)
        for part in rest:
            found = getattr(found, part, _MISSING)
        if found is not _MISSING:
            return found
    raise ContractError(
        f"the program calls {shown(name)}, which is missing here",
        why="it was there where the step was captured, and an artifact holds its name alone",
    )


def shown(name: list[Any]) -> str:
    """Return a name as text: "package.module:function" or "self.writer.add_scalar"."""
    return f"{name[1]}:{name[2]}" if name[0] == "module" else ".".join(map(str, name[1:]))


def _attribute(module: str, qualified: str) -> Any:
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError):
        return _MISSING


def _path_of(step: Step, call: Call, thing: Any, functions: Iterable[Any]) -> list[Any] | None:
    """The shortest path to an object: a root, or an attribute of one, or of a module below one."""
    roots = list(_roots(step, call))
    for name, root in roots:
        if root is thing:
            return ["path", name]
    for name, root in roots:
        for path, holder in _below(root):
            for key, value in getattr(holder, "__dict__", {}).items():
                if value is thing:
                    return ["path", name, *path, key]
    for (module, name), value in _globals(functions):
        if value is thing:
            return ["module", module, name]
    return None


def _globals(functions: Iterable[Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    """What functions mention of their modules: ((module, name), value)."""
    for function in functions:
        for name in globals_in(function.__code__):
            if name in function.__globals__:
                yield (function.__module__, name), function.__globals__[name]


def _below(root: Any) -> Iterator[tuple[list[str], Any]]:
    import torch

    if not isinstance(root, torch.nn.Module):
        yield [], root
        return
    for path, module in root.named_modules():
        yield path.split(".") if path else [], module


def _roots(step: Step, call: Call) -> Iterator[tuple[str, Any]]:
    """What the step reaches by name; an argument hides what else has its name."""
    yield from step.reached()
    yield from call.roots.items()
    yield from call.objects.items()
    yield from zip(call.names, call.leaves, strict=True)
