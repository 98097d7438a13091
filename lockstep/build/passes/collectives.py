"""What a functional collective of a graph is: a start, a wait, which kind, over which axis."""

from __future__ import annotations

from typing import Any

from lockstep import _compat

REDUCES, SCATTERS, GATHERS = "all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"
KINDS = (REDUCES, SCATTERS, GATHERS)


def is_start(node: Any) -> bool:
    """Whether a call starts a collective that is waited for by a call of its own."""
    return kind(node) in (*KINDS, "all_to_all_single", "broadcast")


def is_wait(node: Any) -> bool:
    """Whether a call waits for a collective."""
    return kind(node) == "wait_tensor"


def kind(node: Any) -> str:
    """The operator's name, as "all_reduce"; empty for what is no functional collective."""
    target = node.target
    if node.op != "call_function" or getattr(target, "namespace", "") != "_c10d_functional":
        return ""
    return str(_compat.schema(target).name.partition("::")[2])


def wait_of(start: Any) -> Any:
    """The one call that waits for a collective; None where there is another use of it."""
    users = list(start.users)
    return users[0] if len(users) == 1 and is_wait(users[0]) else None


def axis_of(start: Any) -> str:
    """The axis that a collective goes over."""
    names = [argument.name for argument in _compat.schema(start.target).arguments]
    return str(start.args[names.index("group_name")])


def size_of(node: Any) -> int | None:
    """The bytes of a value; None where they are not known before it runs."""
    value = node.meta.get("val")
    numbers = getattr(value, "shape", [None])
    if not all(type(number) is int for number in numbers):
        return None
    return int(value.numel() * value.element_size())
