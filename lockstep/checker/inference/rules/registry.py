"""Which function types which operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep import _compat
from lockstep.checker.inference.kinds import Kind
from lockstep.checker.inference.rules.context import Context

Result = Kind | list[Kind]
Function = Callable[[Context], Result]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Args:
        of: gives the kind of the result, or of each result.
        linear: whether a factor that is still pending on an operand is pending on the result.
    """

    of: Function
    linear: bool


_rules: dict[str, Rule] = {}


def rule(*names: str, linear: bool = True) -> Callable[[Function], Function]:
    """Register a function for operators, named without overload and trailing underscore.

    Args:
        names: "mm" for `aten.mm`, "lockstep.own_pad" for other namespaces.

    Raises:
        ValueError: two rules for one operator.
    """

    def register(function: Function) -> Function:
        for name in names:
            if name in _rules:
                raise ValueError(f"a second rule for {name}")
            _rules[name] = Rule(function, linear)
        return function

    return register


def find(name: str) -> Rule | None:
    """Return an operator's rule, None where there is none."""
    return _rules.get(name)


def known() -> frozenset[str]:
    """Return the names of all operators that have a rule."""
    return frozenset(_rules)


def op_name(target: Any) -> str:
    """Return an operator's name as rules have it; in-place forms go by the name of the plain one.

    Example:
        >>> import torch
        >>> op_name(torch.ops.aten.add_.Tensor), op_name(torch.ops.aten._softmax.default)
        ('add', '_softmax')
    """
    schema = _compat.schema_or_none(target)
    if schema is None:
        return getattr(target, "__name__", str(target))
    space, _, name = schema.name.partition("::")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if space == "aten" else f"{space}.{name}"
