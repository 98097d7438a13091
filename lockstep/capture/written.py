"""What a package's layers write into the objects that modules hold, as a configuration.

A rank that traces a step runs its Python, and the others do not: what the trace left in such an
object would make the ranks ask for other programs at the next call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import torch

from lockstep.capture.origin import user_line

PLAIN = (bool, int, float, complex, str, bytes, type(None))


class PlainValues:
    """The public attributes of an object that are plain values, as a mapping."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self._held: MutableMapping[str, Any] = vars(owner)

    def __iter__(self) -> Iterator[str]:
        found = [k for k, v in self._held.items() if isinstance(v, PLAIN)]
        return iter([key for key in found if not key.startswith("_")])

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]


def held_objects(modules: Iterable[tuple[str, torch.nn.Module]]) -> Iterator[tuple[str, Any]]:
    """The objects that modules hold in plain attributes, each once, by its first name."""
    seen: set[int] = set()
    for name, module in modules:
        for key, value in list(vars(module).items()):
            if id(value) not in seen and _is_held(key, value):
                seen.add(id(value))
                yield f"{name}.{key}", value


def _is_held(key: str, value: Any) -> bool:
    """Whether an attribute is somebody's own object: no value, no code, and nothing of torch's."""
    if key.startswith("_") or not hasattr(value, "__dict__") or callable(value):
        return False
    return not type(value).__module__.startswith(("torch.", "builtins"))


@contextlib.contextmanager
def noting_writes(objects: Iterable[Any]) -> Iterator[dict[tuple[int, str], str]]:
    """Note where attributes of objects are set while inside: (id, name) -> "file:line"."""
    lines: dict[tuple[int, str], str] = {}
    known = {id(one) for one in objects}
    with contextlib.ExitStack() as stack:
        for kind in {type(one) for one in objects}:
            stack.enter_context(_noting(kind, known, lines))
        yield lines


@contextlib.contextmanager
def _noting(kind: type, known: set[int], lines: dict[tuple[int, str], str]) -> Iterator[None]:
    raw: Any = kind.__setattr__
    own = vars(kind).get("__setattr__")

    def write(self: Any, name: str, value: Any) -> None:
        if id(self) in known:
            lines.setdefault((id(self), name), user_line())
        raw(self, name, value)

    try:
        kind.__setattr__ = write  # type: ignore[method-assign, assignment]
    except TypeError:  # a class that can't be changed: the line is then not known
        yield
        return
    try:
        yield
    finally:
        if own is None:
            del kind.__setattr__
        else:
            kind.__setattr__ = own  # type: ignore[method-assign]
