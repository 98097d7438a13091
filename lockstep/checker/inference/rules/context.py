"""What a rule sees: a node's operands with their kinds, its constants, and how ranks differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.checker.inference.kinds import EQUAL, UNKNOWN, Kind


@dataclass(frozen=True)
class Operand:
    """One tensor that a node reads."""

    node: Node
    kind: Kind
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class Fault:
    """What a rule objects to; `finding` turns it into text.

    Args:
        code: "LS5xx".
        node: where; `operand` is the one whose type is wrong there, `other` what it meets.
    """

    code: str
    what: str
    why: str
    node: Node
    operand: Node | None = None
    other: Node | None = None
    got: str = ""
    want: str = ""


@dataclass
class Context:
    """One node along one axis.

    Args:
        node: the node in the first rank's graph; shapes are that rank's.
        peers: the same node on the traced ranks of one group of the axis, by coordinate.
        kinds: node -> its kind, or kinds, of what was typed before.
        picks: operand -> its kind here, where the ranks read different nodes.
        size: the number of ranks on the axis.
        phase: "input", "forward", "backward" or "after".
        places: the coordinates of the peers.
    """

    node: Node
    axis: str
    size: int
    peers: list[Node]
    kinds: dict[Node, Any]
    picks: dict[Node, Kind]
    phase: str
    report: Callable[[Fault], None]
    places: list[int]

    def __post_init__(self) -> None:
        self._bound = bind(self.node)
        self.operands = [
            self.operand(leaf)
            for leaf in pytree.tree_leaves((self.node.args, self.node.kwargs))
            if is_tensor(leaf)
        ]

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in the operator's schema, with its default."""
        return self._bound.get(name)

    def has(self, name: str) -> bool:
        return self._bound.get(name) is not None

    def operand(self, node: Node) -> Operand:
        return Operand(node, self.kind(node), shape_of(node))

    def kind(self, value: Any) -> Kind:
        """An operand's kind; a Python value is equal on all ranks unless it differs."""
        if not isinstance(value, Node):
            return EQUAL
        if value in self.picks:
            return self.picks[value]
        found = self.kinds.get(value, UNKNOWN)
        return found if isinstance(found, Kind) else UNKNOWN

    def get(self, name: str) -> Operand | None:
        """The tensor operand of this argument name; None where it is left out or a number."""
        value = self._bound.get(name)
        return self.operand(value) if is_tensor(value) else None

    @property
    def forward(self) -> bool:
        """Whether the node belongs to the forward."""
        return self.phase in ("input", "forward")

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.node)

    @property
    def op(self) -> str:
        from lockstep.checker.inference.rules.registry import op_name

        return op_name(self.node.target)

    def constants(self, name: str) -> list[Any]:
        """The value that an argument has on each rank of the group."""
        return [bind(peer).get(name) for peer in self.peers]

    @property
    def differs(self) -> bool:
        """Whether a constant of this node is not the same on all ranks."""
        texts = {
            str([leaf for leaf in _leaves(peer) if not isinstance(leaf, Node)])
            for peer in self.peers
        }
        return len(texts) > 1

    def fault(
        self,
        code: str,
        what: str,
        why: str,
        operand: Operand | None = None,
        other: Operand | None = None,
        got: str = "",
        want: str = "",
        at: Node | None = None,
    ) -> None:
        """Object to this node, or to the one that is at fault for it."""
        self.report(
            Fault(
                code,
                what,
                why,
                at or self.node,
                operand and operand.node,
                other and other.node,
                got or (repr(operand.kind) if operand else ""),
                want,
            )
        )


def _leaves(node: Node) -> list[Any]:
    return pytree.tree_leaves((node.args, node.kwargs))


def bind(node: Node) -> dict[str, Any]:
    """Return a node's arguments by name, defaults filled in."""
    schema = _compat.schema_or_none(node.target)
    if schema is None:
        return {f"arg{i}": value for i, value in enumerate(node.args)} | dict(node.kwargs)
    out: dict[str, Any] = {}
    for i, argument in enumerate(schema.arguments):
        if i < len(node.args):
            out[argument.name] = node.args[i]
        elif argument.name in node.kwargs:
            out[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            out[argument.name] = argument.default_value
    return out


def is_tensor(value: Any) -> bool:
    """Whether this is a node whose value is one tensor."""
    if not isinstance(value, Node):
        return False
    return value.op == "get_attr" or isinstance(value.meta.get("val"), torch.Tensor)


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the local shape of a node's tensor; () for anything else."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def dtype_of(node: Any) -> torch.dtype | None:
    """Return the dtype of a node's tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None
