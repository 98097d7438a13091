"""Modules that become parallel where they stand: same weights, same names, another forward."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lockstep import _compat

Read = Callable[[Tensor], Tensor]


def become(module: nn.Module, behaviour: Any, **attributes: Any) -> nn.Module:
    """Put a behaviour before a module's own class; its parameters and their names stay.

    Args:
        module: changed in place.
        behaviour: a class whose `forward` may call `super().forward`.
        attributes: set on the module, for the behaviour to read.

    Returns:
        The module.

    Example:
        >>> class Doubled:
        ...     def forward(self, x):
        ...         return 2 * super().forward(x)
        >>> become(nn.Identity(), Doubled)(3)
        6
    """
    for name, value in attributes.items():
        setattr(module, name, value)
    kind: Any = type(module)
    module.__class__ = _mixed(behaviour, kind)
    return module


@functools.cache
def _mixed(behaviour: Any, kind: Any) -> type:
    return type(behaviour.__name__ + kind.__name__, (behaviour, kind), {"__module__": __name__})


def read_through(module: nn.Module, name: str, read: Read) -> None:
    """Let `module.<name>` give what `read` makes of the parameter; the parameter stays as it is.

    Several reads of one parameter follow one another, the last one added last.

    Args:
        module: changed in place; the parameter is its own, not a submodule's.
        name: of the parameter.
        read: gets the parameter, at each use.
    """
    reads = {**getattr(module, "reads", {})}
    reads[name] = (*reads.get(name, ()), read)
    module.reads = reads  # type: ignore[assignment]
    kind: Any = type(module)
    module.__class__ = _reading(kind, name)


@functools.cache
def _reading(kind: Any, name: str) -> type:
    if isinstance(getattr(kind, name, None), property):
        return kind

    def get(self: Any) -> Any:
        value = _compat.module_tables(self)[0][name]
        for read in self.reads[name]:
            value = read(value)
        return value

    return type(kind.__name__, (kind,), {"__module__": __name__, name: property(get)})
