"""Buffers that a library keeps for itself, in its globals: after a trace they are as they were.

A scratch buffer that is made while a step is traced would stay a stand-in, which no later step
could use. Megatron keeps one for all its layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from lockstep import _compat

_OWN = ("torch", "lockstep", "numpy")  # these keep no tensor of a step's
_DEPTH = 3


class Scratch:
    """What the globals of some packages hold, with the containers and objects in them.

    Args:
        packages: top-level names.

    Example:
        >>> Scratch(["no_such_package"]).put_back()
    """

    def __init__(self, packages: Iterable[str]) -> None:
        others = set(packages) - {*_OWN, *sys.stdlib_module_names}
        self._before = [(held, _entries(held)) for held in _containers(others)]

    def put_back(self) -> None:
        """Take stand-ins out of every place that did not hold them before."""
        for held, before in self._before:
            for key, value in _entries(held).items():
                if value is before.get(key) or not _compat.is_fake(value):
                    continue
                if key in before:
                    held[key] = before[key]
                elif isinstance(held, dict):
                    del held[key]
            if isinstance(held, list) and any(map(_compat.is_fake, held[len(before) :])):
                del held[len(before) :]


def _entries(held: Any) -> dict[Any, Any]:
    return dict(held) if isinstance(held, dict) else dict(enumerate(held))


def _containers(packages: set[str]) -> Iterator[Any]:
    """Every dictionary and list in reach of the packages' globals, those of attributes too.

    The nearest ones first: what is met far away and near by is followed from near by.
    """
    modules = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] in packages]
    found = [vars(module) for module in modules if isinstance(module, ModuleType)]
    seen: dict[int, Any] = {}
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for held in found:
            if id(held) not in seen:
                seen[id(held)] = held
                inner += _inside(held, packages)
        found = inner
    yield from seen.values()


def _inside(held: Any, packages: set[str]) -> Iterator[Any]:
    for value in list(held.values() if isinstance(held, dict) else held):
        if type(value) in (dict, list):
            yield value
        elif str(type(value).__module__).partition(".")[0] in packages:
            own = getattr(value, "__dict__", None)
            if type(own) is dict:
                yield own
